// SPDX-License-Identifier: Apache-2.0
// tiktoken's files of ranks: a token's bytes in base64 and its rank on each line. They say nothing
// of how text is cut and which special tokens there are: that goes by the name of the encoding.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "tessera/data/tokenizers/pipeline.h"
#include "tessera/data/tokenizers/settings.h"

namespace tessera::data::tokenizers {

/// Whether the first line is base64, a space and a number.
bool looks_like_tiktoken(std::string_view content);

/// The tokenizer of such a file. A file called as one of tiktoken's encodings (r50k_base,
/// p50k_base, p50k_edit, cl100k_base, o200k_base, o200k_harmony) or qwen.tiktoken has its pattern
/// and special tokens; another one has the pattern of Llama 3, as in transformers, and the special
/// tokens that `settings` name, or Llama 3's own where it has its 128,000 ranks. Ids are those of
/// tiktoken: of the pairs beside each other the one whose bytes together have the lowest rank is
/// merged first. Error{Format} for lines that are none, tokens or ranks that occur twice and bytes
/// without a token.
PipelineParts read_tiktoken(const std::filesystem::path& path, const Settings& settings);

}  // namespace tessera::data::tokenizers
