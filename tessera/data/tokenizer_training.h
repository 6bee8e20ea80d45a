// SPDX-License-Identifier: Apache-2.0
// Trains a tokenizer on the texts of files.
#pragma once

#include <filesystem>
#include <vector>

#include "tessera/text/tokenizers/training.h"

namespace tessera::data {

/// Reads .txt files (each line, with its line end, is a text) and .jsonl files (the field of each
/// line), also from folders, with options.threads threads. Holds the different pieces of the text
/// in memory. Throws Error{Data} with the place for invalid UTF-8 and bad lines, and what
/// text::tokenizers::train_tokenizer() throws.
text::tokenizers::TrainedTokenizer train_tokenizer(
    const std::vector<std::filesystem::path>& sources,
    const text::tokenizers::TrainingOptions& options);

}  // namespace tessera::data
