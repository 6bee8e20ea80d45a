// SPDX-License-Identifier: Apache-2.0
// The models that turn one piece of text into tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tessera/data/tokenizers/part_reader.h"

namespace tessera::data::tokenizers {

/// A token of one piece, of the bytes [begin, end) in it. `unknown` tells that the library writes
/// the piece's own text where it writes the token.
struct Token {
  std::int32_t id;
  std::uint32_t begin;
  std::uint32_t end;
  bool unknown = false;
};

/// Strings by id and ids by string.
class Vocabulary {
 public:
  static constexpr std::int64_t kLargestId = (std::int64_t{1} << 24) - 1;
  /// Error{Format} for an id that is negative, above kLargestId or taken by another string.
  void add(const std::string& text, std::int64_t id, const std::string& where);
  [[nodiscard]] std::optional<std::int32_t> find(std::string_view text) const;
  /// Empty for ids without a token.
  [[nodiscard]] const std::string& text(std::int32_t id) const;
  [[nodiscard]] bool has(std::int32_t id) const;
  /// One more than the largest id.
  [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(texts_.size()); }

 private:
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const {
      return std::hash<std::string_view>()(text);
    }
  };
  std::unordered_map<std::string, std::int32_t, Hash, std::equal_to<>> ids_;
  std::vector<std::string> texts_;
  std::vector<bool> present_;
};

/// Threads: const methods from any thread.
class Model {
 public:
  virtual ~Model() = default;
  /// Appends the tokens of a piece of valid UTF-8 that is not empty. Error{Data} for a character
  /// that has no token where the model has none for the unknown.
  virtual void tokenize(std::string_view piece, std::vector<Token>& out) const = 0;
  [[nodiscard]] const Vocabulary& vocabulary() const { return vocabulary_; }

 protected:
  Vocabulary vocabulary_;
};
using ModelPtr = std::shared_ptr<const Model>;

/// By "type", or by its members in files that have none: BPE, Unigram, WordPiece, WordLevel.
/// Error{Unsupported} for other types and for a dropout, which would make ids random;
/// Error{Format} for parts that do not fit together.
ModelPtr read_model(const Part& part);

/// The longest token first; a word of which a part is none becomes the token `unknown` as a whole,
/// and so does one of more than `most_characters`. Tokens inside of words begin with `prefix`.
ModelPtr make_word_piece_model(Vocabulary vocabulary,
                               std::int32_t unknown,
                               std::string prefix,
                               std::int64_t most_characters);

/// A unigram language model.
struct UnigramPieces {
  struct Piece {
    std::string text;
    double score = 0;
    std::int32_t id = 0;
    bool searched = true;  ///< may be found in text
  };
  std::vector<Piece> pieces;
  std::int32_t unknown = -1;  ///< its id; -1: none
  double unknown_score = 0;   ///< of a character that has no piece
  bool byte_fallback = false;
  /// As sentencepiece: sums are rounded to float, and unknown text is not looked up as a whole.
  bool as_sentencepiece = false;
};
/// Error{Format} for ids that are out of range or taken, and scores that are not finite.
ModelPtr make_unigram_model(UnigramPieces pieces, const std::string& where);

/// The constructors behind read_model(), one file each.
ModelPtr read_bpe_model(const Part& part);
ModelPtr read_unigram_model(const Part& part);

/// Reads {token: id}.
void read_vocabulary(const json& object, const std::string& where, Vocabulary& out);
/// "<0x0A>".
std::string byte_token(unsigned char byte);

}  // namespace tessera::data::tokenizers
