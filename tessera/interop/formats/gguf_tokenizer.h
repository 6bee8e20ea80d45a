// SPDX-License-Identifier: Apache-2.0
// The tokenizer of a GGUF file as the files that lie beside weights, and the reverse.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/config/json.h"
#include "tessera/interop/formats/gguf_file.h"

namespace tessera::interop {

/// Names and contents of files.
using FilesBeside = std::vector<std::pair<std::string, std::string>>;

/// tokenizer.json, tokenizer_config.json (with the chat template) and generation_config.json of the
/// file's tokenizer: byte-level BPE of a known split, sentencepiece's BPE, and WordPiece. Empty
/// where the file has none. Without tokenizer.json for a split that is not known: the other files
/// still say the special tokens. Error{Format} for tables that contradict each other.
FilesBeside gguf_tokenizer_files(const GgufFile& file, std::optional<std::int64_t> max_positions);

/// Adds bos_token_id, eos_token_id and pad_token_id to a config.json, where the file says them.
void add_token_ids(const GgufFile& file, json::Value& config);

/// The tokenizer that the metadata of a GGUF file describes.
struct GgufTokenizer {
  std::string tokenizer, pre;       ///< tokenizer.ggml.model, and .pre of byte-level BPE
  std::vector<std::string> tokens;  ///< by id
  std::vector<std::int32_t>
      types;                  ///< 1 normal, 2 unknown, 3 control, 4 of the user, 5 unused, 6 byte
  std::vector<float> scores;  ///< of sentencepiece's model alone
  std::vector<std::string> merges;                        ///< of byte-level BPE alone
  std::vector<std::pair<std::string, std::int64_t>> ids;  ///< "bos_token_id" -> id
  std::optional<bool> add_bos, add_eos;
  std::optional<bool> add_space_prefix;
  std::string chat_template;  ///< empty without one
};
/// Reads the files beside weights (tokenizer.json, tokenizer_config.json, config.json); nothing
/// where there is no tokenizer.json. `vocab_size`: rows of the token table, to which the tokens
/// are filled up. Error{Unsupported} for a tokenizer that GGUF has no word for.
std::optional<GgufTokenizer> gguf_tokenizer_of(const FilesBeside& files, std::int64_t vocab_size);

}  // namespace tessera::interop
