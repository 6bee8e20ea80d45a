// SPDX-License-Identifier: Apache-2.0
// The unigram language model of Kudo (2018): the most probable cut, found by Viterbi's algorithm.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/data/tokenizers/characters.h"
#include "tessera/data/tokenizers/models.h"
#include "tessera/data/tokenizers/trie.h"

namespace tessera::data::tokenizers {
namespace {

constexpr double kUnknownPenalty = 10;

class UnigramModel final : public Model {
 public:
  explicit UnigramModel(const Part& part) : byte_fallback_(part.flag("byte_fallback", false)) {
    const json& list = part.at("vocab");
    if (!list.is_array())
      refuse_part(part.where(), "has a vocab that is no list of [token, score]");
    for (const json& item : list) {
      const std::string where = fmt::format("{}.vocab[{}]", part.where(), scores_.size());
      if (!item.is_array() || item.size() != 2 || !item[0].is_string() || !item[1].is_number())
        refuse_part(where, "is not [token, score]");
      const auto id = static_cast<std::int64_t>(scores_.size());
      const auto text = item[0].get<std::string>();
      vocabulary_.add(text, id, where);
      if (!text.empty()) trie_.add(text, static_cast<std::int32_t>(id));
      scores_.push_back(item[1].get<double>());
      if (!std::isfinite(scores_.back())) refuse_part(where, "has a score that is not finite");
      least_ = std::min(least_, scores_.back());
    }
    const std::int64_t unknown = part.integer("unk_id", -1);
    if (unknown >= static_cast<std::int64_t>(scores_.size()))
      refuse_part(part.where(), "has an unk_id beyond the vocab");
    unknown_ = static_cast<std::int32_t>(unknown);
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
      // Neighbours that are unknown become one token.
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
    const auto relax = [&](std::size_t begin, std::size_t end, double score, std::int32_t id) {
      Node& node = best[end];
      const double sum = best[begin].score + score;
      if (!node.reached || sum > node.score) node = {sum, begin, id, true};
    };
    for (std::size_t begin = 0; begin < piece.size();) {
      const std::size_t length = character_length(piece[begin]);
      bool single = false;
      trie_.prefixes(piece.substr(begin), [&](std::size_t size, std::int32_t id) {
        relax(begin, begin + size, scores_[static_cast<std::size_t>(id)], id);
        single = single || size == length;
      });
      if (!single) {
        TESSERA_REQUIRE(
            unknown_ >= 0,
            Data,
            fmt::format("\"{}\" has no token, and the tokenizer has none for the unknown",
                        piece.substr(begin, length)),
            "use a tokenizer with an unk_id");
        relax(begin, begin + length, least_ - kUnknownPenalty, unknown_);
      }
      begin += length;
    }
  }

  // Unknown text that is a token after all, or that becomes bytes.
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
      const auto known = token.id == unknown_ ? vocabulary_.find(text) : std::nullopt;
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

  Trie trie_;
  std::vector<double> scores_;
  double least_ = std::numeric_limits<double>::infinity();
  std::int32_t unknown_ = -1;
  bool byte_fallback_;
  std::array<std::int32_t, 256> byte_ids_{};
};

}  // namespace

ModelPtr read_unigram_model(const Part& part) {
  return std::make_shared<UnigramModel>(part);
}

}  // namespace tessera::data::tokenizers
