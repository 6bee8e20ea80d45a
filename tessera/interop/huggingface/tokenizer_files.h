// SPDX-License-Identifier: Apache-2.0
// The files of a tokenizer in a Hugging Face folder.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tessera/text/tokenizer.h"

namespace tessera::interop {

/// Adds the files, by name and content, with which transformers tokenizes text as the tokenizer
/// does. The byte tokenizer has no special token: byte 0 ends a text, and generation_config.json
/// says so. Throws Error{Format} or Error{Io} for a file that cannot be read.
void add_tokenizer_files(std::vector<std::pair<std::string, std::string>>& files,
                         const text::TokenizerOptions& options,
                         std::int64_t max_positions);

}  // namespace tessera::interop
