// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <queue>
#include <set>
#include <unordered_map>

#include "tessera/text/tokenizers/characters.h"
#include "tessera/text/tokenizers/training.h"

namespace tessera::text::tokenizers {
namespace {

using Id = std::int32_t;
using Pair = std::pair<Id, Id>;

struct PairHash {
  std::size_t operator()(const Pair& pair) const {
    return std::hash<std::uint64_t>()((static_cast<std::uint64_t>(pair.first) << 32U) |
                                      static_cast<std::uint32_t>(pair.second));
  }
};

struct Word {
  std::vector<Id> ids;
  std::int64_t count = 0;
};

/// A pair that may be merged, with its count when it was pushed and the words in which it occurred
/// then.
struct Candidate {
  Pair pair;
  std::int64_t count = 0;
  std::vector<std::size_t> words;
  /// Order of a queue whose largest element comes first.
  bool operator<(const Candidate& other) const {
    return count != other.count ? count < other.count : pair > other.pair;
  }
};

class MergeLearner {
 public:
  MergeLearner(const PieceCounts& pieces, const MergeOptions& options) : options_(options) {
    for (const std::string& token : options.special)
      add(token);
    add_alphabet(pieces);
    for (const auto& [piece, count] : pieces)
      words_.push_back(word_of(piece, count));
    count_pairs();
  }

  LearntMerges learn() {
    std::int64_t taken = 0;
    while (size() < options_.vocab_size && !queue_.empty()) {
      Candidate best = queue_.top();
      queue_.pop();
      const std::int64_t count = counts_[best.pair];
      if (best.count != count) {
        // Neighbours were merged since: the pair is pushed again with its new count.
        best.count = count;
        queue_.push(std::move(best));
        continue;
      }
      if (best.count < 1 || best.count < options_.min_frequency) break;
      merge(best);
      if (options_.poll && ++taken % kPollEvery == 0) options_.poll();
    }
    return std::move(out_);
  }

 private:
  static constexpr std::int64_t kPollEvery = 256;

  [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(out_.tokens.size()); }

  Id add(const std::string& token) {
    const auto [place, is_new] = ids_.emplace(token, static_cast<Id>(out_.tokens.size()));
    if (is_new) out_.tokens.push_back(token);
    return place->second;
  }

  void add_alphabet(const PieceCounts& pieces) {
    std::set<char32_t> first(options_.alphabet.begin(), options_.alphabet.end()), inner;
    for (const auto& [piece, count] : pieces) {
      for (std::size_t at = 0; at < piece.size();) {
        const bool begins = at == 0 || options_.inner_prefix.empty();
        const char32_t character = next_character(piece, at);
        first.insert(character);
        if (!begins) inner.insert(character);
      }
    }
    const auto add_all = [&](const std::set<char32_t>& characters, const std::string& prefix) {
      for (const char32_t character : characters) {
        std::string token = prefix;
        append_utf8(token, character);
        add(token);
      }
    };
    add_all(first, "");
    add_all(inner, options_.inner_prefix);
  }

  Word word_of(const std::string& piece, std::int64_t count) {
    Word out{{}, count};
    for (std::size_t at = 0; at < piece.size();) {
      std::string token = at == 0 ? "" : options_.inner_prefix;
      append_utf8(token, next_character(piece, at));
      out.ids.push_back(ids_.at(token));
    }
    return out;
  }

  void count_pairs() {
    std::map<Pair, std::vector<std::size_t>> where;
    for (std::size_t w = 0; w < words_.size(); ++w) {
      const Word& word = words_[w];
      for (std::size_t i = 0; i + 1 < word.ids.size(); ++i) {
        const Pair pair(word.ids[i], word.ids[i + 1]);
        counts_[pair] += word.count;
        std::vector<std::size_t>& words = where[pair];
        if (words.empty() || words.back() != w) words.push_back(w);
      }
    }
    push(std::move(where));
  }

  void push(std::map<Pair, std::vector<std::size_t>> where) {
    for (auto& [pair, words] : where) {
      const std::int64_t count = counts_[pair];
      if (count > 0) queue_.push({pair, count, std::move(words)});
    }
  }

  void merge(const Candidate& best) {
    const std::string &left = out_.tokens[static_cast<std::size_t>(best.pair.first)],
                      &right = out_.tokens[static_cast<std::size_t>(best.pair.second)];
    const std::string& prefix = options_.inner_prefix;
    const bool inner = !prefix.empty() && right.starts_with(prefix);
    out_.merges.emplace_back(left, right);
    const Id merged = add(left + (inner ? right.substr(prefix.size()) : right));
    std::map<Pair, std::vector<std::size_t>> appeared;
    for (const std::size_t w : best.words)
      merge_in(w, best.pair, merged, appeared);
    push(std::move(appeared));
  }

  /// Merges from left to right; the neighbours of a merged pair form other pairs.
  void merge_in(std::size_t w,
                const Pair& pair,
                Id merged,
                std::map<Pair, std::vector<std::size_t>>& appeared) {
    Word& word = words_[w];
    const auto change = [&](const Pair& changed, std::int64_t sign) {
      counts_[changed] += sign * word.count;
      if (sign < 0) return;
      std::vector<std::size_t>& words = appeared[changed];
      if (words.empty() || words.back() != w) words.push_back(w);
    };
    std::size_t kept = 0;
    for (std::size_t i = 0; i < word.ids.size(); ++i, ++kept) {
      const bool here =
          i + 1 < word.ids.size() && word.ids[i] == pair.first && word.ids[i + 1] == pair.second;
      if (!here) {
        word.ids[kept] = word.ids[i];
        continue;
      }
      if (kept > 0) {
        change({word.ids[kept - 1], pair.first}, -1);
        change({word.ids[kept - 1], merged}, 1);
      }
      word.ids[kept] = merged;
      ++i;
      if (i + 1 < word.ids.size()) {
        change({pair.second, word.ids[i + 1]}, -1);
        change({merged, word.ids[i + 1]}, 1);
      }
    }
    word.ids.resize(kept);
  }

  const MergeOptions& options_;
  LearntMerges out_;
  std::unordered_map<std::string, Id> ids_;
  std::vector<Word> words_;
  std::unordered_map<Pair, std::int64_t, PairHash> counts_;
  std::priority_queue<Candidate> queue_;
};

}  // namespace

LearntMerges learn_merges(const PieceCounts& pieces, const MergeOptions& options) {
  return MergeLearner(pieces, options).learn();
}

}  // namespace tessera::text::tokenizers
