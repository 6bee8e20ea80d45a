// SPDX-License-Identifier: Apache-2.0
// The unigram language model of Kudo (2018): the most probable segmentation, found by Viterbi's
// algorithm.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/text/tokenizers/characters.h"
#include "tessera/text/tokenizers/models.h"
#include "tessera/text/tokenizers/trie.h"

namespace tessera::text::tokenizers {
namespace {

constexpr double kUnknownPenalty = 10;

class UnigramModel final : public Model {
 public:
  UnigramModel(UnigramPieces given, const std::string& where)
      : unknown_score_(given.unknown_score),
        unknown_(given.unknown),
        byte_fallback_(given.byte_fallback),
        as_sentencepiece_(given.as_sentencepiece) {
    for (UnigramPieces::Piece& piece : given.pieces) {
      if (!std::isfinite(piece.score))
        refuse_part(where, fmt::format("gives \"{}\" a score that is not finite", piece.text));
      vocabulary_.add(piece.text, piece.id, where);
      if (!piece.searched || piece.text.empty()) continue;
      trie_.add(piece.text, static_cast<std::int32_t>(scores_.size()));
      scores_.push_back({piece.score, piece.id});
    }
    for (int byte = 0; byte < 256; ++byte) {
      byte_ids_[static_cast<std::size_t>(byte)] =
          vocabulary_.find(byte_token(static_cast<unsigned char>(byte))).value_or(-1);
    }
  }

  void tokenize(std::string_view piece, std::vector<Token>& out) const override {
    thread_local std::vector<Node> best;
    best.assign(piece.size() + 1, Node{});
    best[0].score = 0;
    forward(piece, best);
    const std::size_t first = out.size();
    for (std::size_t end = piece.size(); end > 0;) {
      const Node& node = best[end];
      const auto begin = static_cast<std::uint32_t>(node.begin);
      // Adjacent unknown nodes become one token.
      if (node.id == unknown_ && out.size() > first && out.back().id == unknown_) {
        out.back().begin = begin;
      } else {
        out.push_back({node.id, begin, static_cast<std::uint32_t>(end)});
      }
      end = node.begin;
    }
    std::reverse(out.begin() + static_cast<std::ptrdiff_t>(first), out.end());
    resolve_unknown(piece, first, out);
  }

 private:
  struct Node {
    double score = -std::numeric_limits<double>::infinity();
    std::size_t begin = 0;
    std::int32_t id = -1;
    bool reached = false;
  };

  void forward(std::string_view piece, std::vector<Node>& best) const {
    const auto relax = [&](std::size_t begin, std::size_t end, double sum, std::int32_t id) {
      Node& node = best[end];
      if (!node.reached || sum > node.score) node = {sum, begin, id, true};
    };
    for (std::size_t begin = 0; begin < piece.size();) {
      const std::size_t length = character_length(piece[begin]);
      bool single = false;
      trie_.prefixes(piece.substr(begin), [&](std::size_t size, std::int32_t which) {
        const Scored& scored = scores_[static_cast<std::size_t>(which)];
        relax(begin, begin + size, rounded(best[begin].score + scored.score), scored.id);
        single = single || size == length;
      });
      if (!single) {
        TESSERA_REQUIRE(
            unknown_ >= 0,
            Data,
            fmt::format("\"{}\" has no token, and the tokenizer has none for the unknown",
                        piece.substr(begin, length)),
            "use a tokenizer with an unk_id");
        relax(begin, begin + length, rounded(best[begin].score + unknown_score_), unknown_);
      }
      begin += length;
    }
  }

  // Handles unknown text that is a token after all, or that becomes bytes.
  void resolve_unknown(std::string_view piece, std::size_t first, std::vector<Token>& out) const {
    if (std::none_of(out.begin() + static_cast<std::ptrdiff_t>(first),
                     out.end(),
                     [&](const Token& t) { return t.id == unknown_; })) {
      return;
    }
    const std::vector<Token> tokens(out.begin() + static_cast<std::ptrdiff_t>(first), out.end());
    out.resize(first);
    for (const Token& token : tokens) {
      const std::string_view text = piece.substr(token.begin, token.end - token.begin);
      const auto known =
          token.id == unknown_ && !as_sentencepiece_ ? vocabulary_.find(text) : std::nullopt;
      const auto byte_id = [&](char c) { return byte_ids_[static_cast<unsigned char>(c)]; };
      if (token.id != unknown_ || known) {
        out.push_back({known.value_or(token.id), token.begin, token.end});
      } else if (byte_fallback_ &&
                 std::all_of(text.begin(), text.end(), [&](char c) { return byte_id(c) >= 0; })) {
        for (const char c : text)
          out.push_back({byte_id(c), token.begin, token.end});
      } else {
        out.push_back({unknown_, token.begin, token.end, true});
      }
    }
  }

  [[nodiscard]] double rounded(double sum) const {
    return as_sentencepiece_ ? static_cast<double>(static_cast<float>(sum)) : sum;
  }

  struct Scored {
    double score;
    std::int32_t id;
  };
  Trie trie_;
  std::vector<Scored> scores_;
  double unknown_score_;
  std::int32_t unknown_;
  bool byte_fallback_, as_sentencepiece_;
  std::array<std::int32_t, 256> byte_ids_{};
};

}  // namespace

ModelPtr make_unigram_model(UnigramPieces pieces, const std::string& where) {
  return std::make_shared<UnigramModel>(std::move(pieces), where);
}

ModelPtr read_unigram_model(const Part& part) {
  UnigramPieces out;
  out.byte_fallback = part.flag("byte_fallback", false);
  const json& list = part.at("vocab");
  if (!list.is_array())
    refuse_part(part.where(), "has a vocab that is not a list of [token, score]");
  double least = std::numeric_limits<double>::infinity();
  for (const json& item : list) {
    if (!item.is_array() || item.size() != 2 || !item[0].is_string() || !item[1].is_number()) {
      refuse_part(fmt::format("{}.vocab[{}]", part.where(), out.pieces.size()),
                  "is not [token, score]");
    }
    const auto id = static_cast<std::int32_t>(
        std::min<std::size_t>(out.pieces.size(), Vocabulary::kLargestId + 1));
    out.pieces.push_back({item[0].get<std::string>(), item[1].get<double>(), id});
    least = std::min(least, out.pieces.back().score);
  }
  out.unknown_score = least - kUnknownPenalty;
  const std::int64_t unknown = part.integer("unk_id", -1);
  if (unknown >= static_cast<std::int64_t>(out.pieces.size()))
    refuse_part(part.where(), "has an unk_id beyond the vocab");
  out.unknown = static_cast<std::int32_t>(unknown);
  return make_unigram_model(std::move(out), part.where());
}

}  // namespace tessera::text::tokenizers
