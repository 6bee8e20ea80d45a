// SPDX-License-Identifier: Apache-2.0
// The models that convert one piece of text to tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tessera/text/tokenizers/part_reader.h"

namespace tessera::text::tokenizers {

/// A token for the bytes [begin, end) of a piece. `unknown` means that the library outputs the
/// piece's own text instead of the token.
struct Token {
  std::int32_t id;
  std::uint32_t begin;
  std::uint32_t end;
  bool unknown = false;
};

/// Maps strings to ids and ids to strings.
class Vocabulary {
 public:
  static constexpr std::int64_t kLargestId = (std::int64_t{1} << 24) - 1;
  /// Throws Error{Format} for an id that is negative, above kLargestId or used by another string.
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

/// Const methods can be called from any thread.
class Model {
 public:
  virtual ~Model() = default;
  /// Appends the tokens of a non-empty piece of valid UTF-8. Throws Error{Data} for a character
  /// without a token if the model has no unknown token.
  virtual void tokenize(std::string_view piece, std::vector<Token>& out) const = 0;
  [[nodiscard]] const Vocabulary& vocabulary() const { return vocabulary_; }

 protected:
  Vocabulary vocabulary_;
};
using ModelPtr = std::shared_ptr<const Model>;

/// Creates the model of "type", or, in files without a type, the model that fits the members: BPE,
/// Unigram, WordPiece, WordLevel. Throws Error{Unsupported} for other types and for a dropout,
/// which would make ids random; throws Error{Format} for inconsistent parts.
ModelPtr read_model(const Part& part);

/// Takes the longest token first. A word with a part that is not a token, or with more than
/// `most_characters` characters, becomes `unknown` as a whole. Tokens inside words begin with
/// `prefix`.
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
  std::int32_t unknown = -1;  ///< id of the unknown token; -1: none
  double unknown_score = 0;   ///< score of a character without a piece
  bool byte_fallback = false;
  /// As sentencepiece: sums are rounded to float, and unknown text is not looked up as a whole.
  bool as_sentencepiece = false;
};
/// Throws Error{Format} for ids that are out of range or used twice, and for non-finite scores.
ModelPtr make_unigram_model(UnigramPieces pieces, const std::string& where);

/// The constructors used by read_model(), one file each.
ModelPtr read_bpe_model(const Part& part);
ModelPtr read_unigram_model(const Part& part);

/// Reads {token: id}.
void read_vocabulary(const json& object, const std::string& where, Vocabulary& out);
/// "<0x0A>" for byte 10.
std::string byte_token(unsigned char byte);

}  // namespace tessera::text::tokenizers
