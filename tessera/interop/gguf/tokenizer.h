// SPDX-License-Identifier: Apache-2.0
// Converts the tokenizer of a GGUF file to the files that accompany weights, and back.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/config/json.h"
#include "tessera/interop/gguf/file.h"

namespace tessera::interop {

/// Names and contents of files.
using FilesBeside = std::vector<std::pair<std::string, std::string>>;

/// Returns tokenizer.json, tokenizer_config.json (with the chat template) and
/// generation_config.json for the file's tokenizer: byte-level BPE with a known split,
/// sentencepiece's BPE, or WordPiece. Empty if the file has none. For an unknown split there is no
/// tokenizer.json, but the other files still have the special tokens. Throws Error{Format} for
/// tables that contradict each other.
FilesBeside gguf_tokenizer_files(const GgufFile& file, std::optional<std::int64_t> max_positions);

/// Adds bos_token_id, eos_token_id and pad_token_id to a config.json if the file has them.
void add_token_ids(const GgufFile& file, json::Value& config);

/// The tokenizer that the metadata of a GGUF file describes.
struct GgufTokenizer {
  std::string tokenizer, pre;       ///< tokenizer.ggml.model, and .pre for byte-level BPE
  std::vector<std::string> tokens;  ///< by id
  std::vector<std::int32_t>
      types;                  ///< 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte
  std::vector<float> scores;  ///< only for sentencepiece's model
  std::vector<std::string> merges;                        ///< only for byte-level BPE
  std::vector<std::pair<std::string, std::int64_t>> ids;  ///< pairs such as ("bos_token_id", id)
  std::optional<bool> add_bos, add_eos;
  std::optional<bool> add_space_prefix;
  std::string chat_template;  ///< empty if there is none
};
/// Reads the files that accompany weights (tokenizer.json, tokenizer_config.json, config.json);
/// nothing if there is no tokenizer.json. `vocab_size`: rows of the token table, to which the
/// tokens are padded. Throws Error{Unsupported} for a tokenizer that GGUF cannot represent.
std::optional<GgufTokenizer> gguf_tokenizer_of(const FilesBeside& files, std::int64_t vocab_size);

}  // namespace tessera::interop
