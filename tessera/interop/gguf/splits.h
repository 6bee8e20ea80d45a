// SPDX-License-Identifier: Apache-2.0
// The rules by which byte-level BPE tokenizers split text before merging, by the names in GGUF
// files. Source: the patterns of the models' published tokenizer.json, and llama.cpp's names for
// them.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "tessera/config/json.h"

namespace tessera::interop {

/// The numbers of tokenizer.ggml.token_type.
enum class TokenKind : std::uint8_t {
  Normal = 1,
  Unknown = 2,
  Control = 3,
  User = 4,
  Unused = 5,
  Byte = 6
};

/// Keys of GGUF files after "tokenizer.ggml.", and their names in tokenizer_config.json.
inline constexpr std::array<std::pair<std::string_view, std::string_view>, 7> kSpecialTokens = {
    {{"bos_token_id", "bos_token"},
     {"eos_token_id", "eos_token"},
     {"unknown_token_id", "unk_token"},
     {"padding_token_id", "pad_token"},
     {"seperator_token_id", "sep_token"},
     {"cls_token_id", "cls_token"},
     {"mask_token_id", "mask_token"}}};

struct Split {
  json::Value pre_tokenizer;   ///< as in tokenizer.json
  bool nfc = false;            ///< text is normalized first
  bool ignore_merges = false;  ///< a word of the vocabulary is one token, whatever the merges
};
/// Looks up a value of tokenizer.ggml.pre; nothing for an unknown name.
std::optional<Split> find_split(std::string_view name);
/// The name of the split in a tokenizer.json; nothing for unknown ones. Offset settings are
/// ignored.
std::optional<std::string> name_of_split(const json::Value& tokenizer);

}  // namespace tessera::interop
