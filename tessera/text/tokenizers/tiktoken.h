// SPDX-License-Identifier: Apache-2.0
// tiktoken's files of ranks: each line has a token's bytes in base64 and its rank. The name of the
// encoding, not the file, defines how text is split and which special tokens there are.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "tessera/text/tokenizers/pipeline.h"
#include "tessera/text/tokenizers/settings.h"

namespace tessera::text::tokenizers {

/// Returns whether the first line is base64, a space and a number.
bool looks_like_tiktoken(std::string_view content);

/// Reads the tokenizer of such a file. A file named like one of tiktoken's encodings (r50k_base,
/// p50k_base, p50k_edit, cl100k_base, o200k_base, o200k_harmony) or qwen.tiktoken has that
/// encoding's pattern and special tokens; any other file has the pattern of Llama 3, as in
/// transformers, and the special tokens that `settings` name, or Llama 3's own if it has 128,000
/// ranks. Ids equal tiktoken's: of adjacent pairs, the one whose joined bytes have the lowest rank
/// is merged first. Throws Error{Format} for malformed lines, duplicate tokens or ranks, and bytes
/// without a token.
PipelineParts read_tiktoken(const std::filesystem::path& path, const Settings& settings);

}  // namespace tessera::text::tokenizers
