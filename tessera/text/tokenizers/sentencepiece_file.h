// SPDX-License-Identifier: Apache-2.0
// The .model file of sentencepiece: a Protocol Buffers message (sentencepiece_model.proto).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::text::tokenizers {

struct SentencePieceModel {
  enum class Type : std::uint8_t {
    Normal = 1,
    Unknown = 2,
    Control = 3,
    UserDefined = 4,
    Unused = 5,
    Byte = 6
  };
  struct Piece {
    std::string text;
    float score = 0;
    Type type = Type::Normal;
  };
  enum class Algorithm : std::uint8_t { Unigram = 1, Bpe = 2 };

  std::vector<Piece> pieces;  ///< by id
  std::int32_t unknown = 0;   ///< the only piece of its type
  Algorithm algorithm = Algorithm::Unigram;
  bool byte_fallback = false;
  bool space_behind = false;  ///< a word's space follows it
  std::string unknown_surface = " \u2047 ";
  std::string charsmap;  ///< empty: characters are unchanged
  bool add_dummy_prefix = true, remove_extra_spaces = true, escape_spaces = true;
};

/// True if the bytes begin as such a file does.
bool looks_like_sentencepiece(std::string_view bytes);

/// Throws Error{Format} with `where` for bytes that are not such a message, or inconsistent pieces:
/// none or two for the unknown, an empty or repeated piece, an incomplete set of byte pieces.
/// Throws Error{Unsupported} for the word and char models and for a denormalizer.
SentencePieceModel read_sentencepiece(std::string_view bytes, const std::string& where);

}  // namespace tessera::text::tokenizers
