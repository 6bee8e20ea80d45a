// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/tokenizers/unigram_training.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <limits>
#include <map>
#include <string_view>

#include "tessera/base/error.h"
#include "tessera/base/worker_threads.h"
#include "tessera/text/tokenizers/characters.h"
#include "tessera/text/tokenizers/trie.h"

namespace tessera::text::tokenizers {
namespace {

constexpr std::size_t kLongestPiece = 16;  // characters
constexpr double kKept = 0.75;             // share of the pieces that a round keeps
// Factor of the wanted number; the last pieces are chosen by probability.
constexpr double kEnough = 1.1;
constexpr int kPassesARound = 2;
constexpr double kLeastExpected = 0.5;  // pieces with a lower expected count are dropped at once
/// Sums are computed in this many parts for any number of threads, and added in order.
constexpr std::size_t kParts = 8;
constexpr double kNever = -std::numeric_limits<double>::infinity();

struct Word {
  std::string text;
  std::int64_t count = 0;
};

struct Piece {
  std::string text;
  double score = 0;
  bool is_character = false;  ///< kept, so that every text can be split
};

/// The derivative of log(gamma), by its asymptotic series.
double digamma(double x) {
  double out = 0;
  for (; x < 7; ++x)
    out -= 1 / x;
  const double square = 1 / (x * x);
  return out + std::log(x) - 0.5 / x -
         square * (1.0 / 12 - square * (1.0 / 120 - square * (1.0 / 252 - square / 240)));
}

double add_logs(double a, double b) {
  if (a < b) std::swap(a, b);
  return b == kNever ? a : a + std::log1p(std::exp(b - a));
}

/// Substrings of words and their frequency in the text, from sorted suffixes.
class Substrings {
 public:
  explicit Substrings(const std::vector<Word>& words) {
    for (const Word& word : words) {
      const std::vector<char32_t> characters = characters_of(word.text);
      TESSERA_REQUIRE(
          characters_.size() + characters.size() < std::numeric_limits<std::uint32_t>::max(),
          Data,
          "the different words of the text have more than 4 billion characters",
          "learn from less text");
      for (std::size_t i = 0; i < characters.size(); ++i)
        suffixes_.push_back(
            {static_cast<std::uint32_t>(characters_.size() + i), i == 0, word.count});
      characters_.insert(characters_.end(), characters.begin(), characters.end());
      characters_.push_back(kEnd);
    }
    std::ranges::sort(suffixes_, [this](const Suffix& a, const Suffix& b) {
      const auto order = compare(a.begin, b.begin);
      return order != 0 ? order < 0 : a.begin < b.begin;
    });
  }

  /// Returns the `most` substrings with the largest products of length and frequency, together with
  /// these products. Only substrings of two or more characters that do not always occur within the
  /// same longer one count.
  [[nodiscard]] std::vector<Piece> best(std::size_t most) const {
    std::vector<Found> found = repeated();
    add_whole_words(found);
    const auto better = [this](const Found& a, const Found& b) {
      if (a.value() != b.value()) return a.value() > b.value();
      const auto order = compare(a.begin, b.begin);
      return order != 0 ? order < 0 : a.length < b.length;
    };
    if (found.size() > most) {
      std::ranges::nth_element(found, found.begin() + static_cast<std::ptrdiff_t>(most), better);
      found.resize(most);
    }
    std::ranges::sort(found, better);
    std::vector<Piece> out;
    for (const Found& one : found) {
      Piece piece{.score = one.value()};
      for (std::size_t i = 0; i < one.length; ++i)
        append_utf8(piece.text, characters_[one.begin + i]);
      out.push_back(std::move(piece));
    }
    return out;
  }

 private:
  static constexpr char32_t kEnd = 0;
  struct Suffix {
    std::uint32_t begin;
    bool whole;  ///< it is a word
    std::int64_t count;
  };
  struct Found {
    std::uint32_t begin;
    std::uint32_t length;
    std::int64_t count;
    [[nodiscard]] double value() const {
      return static_cast<double>(count) * static_cast<double>(length);
    }
  };

  [[nodiscard]] int compare(std::size_t a, std::size_t b) const {
    for (std::size_t i = 0; i < kLongestPiece; ++i) {
      const char32_t left = characters_[a + i], right = characters_[b + i];
      if (left != right) return left < right ? -1 : 1;
      if (left == kEnd) return 0;
    }
    return 0;
  }
  [[nodiscard]] std::uint32_t length_at(std::size_t begin) const {
    std::uint32_t length = 0;
    while (length <= kLongestPiece && characters_[begin + length] != kEnd)
      ++length;
    return length;
  }
  /// Returns the number of characters that suffixes i - 1 and i have in common.
  [[nodiscard]] std::uint32_t common(std::size_t i) const {
    if (i == 0 || i >= suffixes_.size()) return 0;
    std::uint32_t length = 0;
    while (length < kLongestPiece) {
      const char32_t left = characters_[suffixes_[i - 1].begin + length];
      if (left == kEnd || left != characters_[suffixes_[i].begin + length]) break;
      ++length;
    }
    return length;
  }

  /// Returns the beginnings of several suffixes that different characters can follow.
  [[nodiscard]] std::vector<Found> repeated() const {
    struct Open {
      std::uint32_t length;
      std::size_t first;
    };
    std::vector<Found> out;
    std::vector<Open> open;
    std::vector<std::int64_t> before = {0};  // counts of all suffixes before one
    for (const Suffix& suffix : suffixes_)
      before.push_back(before.back() + suffix.count);
    for (std::size_t i = 1; i <= suffixes_.size(); ++i) {
      const std::uint32_t length = common(i);
      std::size_t first = i - 1;
      while (!open.empty() && open.back().length > length) {
        const Open& done = open.back();
        first = done.first;
        if (done.length >= 2)
          out.push_back({suffixes_[first].begin, done.length, before[i] - before[first]});
        open.pop_back();
      }
      if (length > 0 && (open.empty() || open.back().length < length))
        open.push_back({length, first});
    }
    return out;
  }

  void add_whole_words(std::vector<Found>& out) const {
    for (std::size_t i = 0; i < suffixes_.size(); ++i) {
      const Suffix& suffix = suffixes_[i];
      if (!suffix.whole || suffix.count < 2) continue;
      const std::uint32_t length = length_at(suffix.begin);
      if (length >= 2 && length <= kLongestPiece && length > std::max(common(i), common(i + 1)))
        out.push_back({suffix.begin, length, suffix.count});
    }
  }

  std::vector<char32_t> characters_;
  std::vector<Suffix> suffixes_;
};

/// The segmentations of a word into pieces.
class Cuts {
 public:
  struct Edge {
    std::size_t begin, end;
    std::size_t piece;
  };

  Cuts(std::string_view text, const Trie& trie) : size_(text.size()) {
    for (std::size_t begin = 0; begin < text.size(); begin += character_length(text[begin])) {
      trie.prefixes(text.substr(begin), [&](std::size_t length, std::int32_t piece) {
        edges_.push_back({begin, begin + length, static_cast<std::size_t>(piece)});
      });
    }
  }

  /// Adds to each piece its expected count in the word, times `weight`.
  void expect(const std::vector<Piece>& pieces, double weight, std::vector<double>& out) const {
    std::vector<double> before(size_ + 1, kNever), behind(size_ + 1, kNever);
    before[0] = behind[size_] = 0;
    for (const Edge& edge : edges_)
      before[edge.end] = add_logs(before[edge.end], before[edge.begin] + pieces[edge.piece].score);
    for (std::size_t i = edges_.size(); i-- > 0;) {
      const Edge& edge = edges_[i];
      behind[edge.begin] =
          add_logs(behind[edge.begin], behind[edge.end] + pieces[edge.piece].score);
    }
    for (const Edge& edge : edges_) {
      const double logarithm = before[edge.begin] + pieces[edge.piece].score + behind[edge.end];
      if (logarithm > kNever) out[edge.piece] += weight * std::exp(logarithm - before[size_]);
    }
  }

  /// The pieces of the most probable segmentation, without the piece `left_out`.
  struct Best {
    std::vector<std::size_t> pieces;
    double score = kNever;
  };
  static constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();
  [[nodiscard]] Best best(const std::vector<Piece>& pieces, std::size_t left_out = kNone) const {
    std::vector<double> scores(size_ + 1, kNever);
    std::vector<const Edge*> last(size_ + 1, nullptr);
    scores[0] = 0;
    for (const Edge& edge : edges_) {
      const double score = scores[edge.begin] + pieces[edge.piece].score;
      if (edge.piece == left_out || score <= scores[edge.end]) continue;
      scores[edge.end] = score;
      last[edge.end] = &edge;
    }
    Best out{.score = scores[size_]};
    for (std::size_t at = size_; at > 0 && last[at] != nullptr; at = last[at]->begin)
      out.pieces.push_back(last[at]->piece);
    return out;
  }

 private:
  std::size_t size_;
  std::vector<Edge> edges_;  // by their beginning
};

class UnigramLearner {
 public:
  UnigramLearner(const PieceCounts& counts, const UnigramOptions& options) : options_(options) {
    for (const auto& [text, count] : counts) {
      if (!text.empty()) words_.push_back({text, count});
    }
    begin();
  }

  std::vector<ScoredPiece> learn() {
    const auto wanted = static_cast<std::size_t>(std::max<std::int64_t>(1, options_.pieces));
    const auto enough = static_cast<std::size_t>(kEnough * static_cast<double>(wanted));
    for (;;) {
      for (int pass = 0; pass < kPassesARound; ++pass)
        maximize(expected());
      if (pieces_.size() <= enough || !prune(enough)) break;
    }
    return finish(wanted);
  }

 private:
  void poll() const {
    if (options_.poll) options_.poll();
  }

  void begin() {
    std::map<char32_t, std::int64_t> characters;
    for (const Word& word : words_) {
      for (const char32_t c : characters_of(word.text))
        characters[c] += word.count;
    }
    for (const auto& [character, count] : characters) {
      Piece piece{.score = static_cast<double>(count), .is_character = true};
      append_utf8(piece.text, character);
      pieces_.push_back(std::move(piece));
    }
    poll();
    const auto most = static_cast<std::size_t>(std::max<std::int64_t>(0, options_.seeds));
    for (Piece& piece : Substrings(words_).best(most))
      pieces_.push_back(std::move(piece));
    double sum = 0;
    for (const Piece& piece : pieces_)
      sum += piece.score;
    for (Piece& piece : pieces_)
      piece.score = std::log(piece.score / sum);
  }

  /// Calls work(part, word) for the words of each part in order; several parts at a time.
  template <class Work>
  void for_each_word(const Work& work) const {
    std::atomic<std::size_t> next = 0;
    on_threads(options_.threads, [&](bool polls, const std::atomic<bool>& failed) {
      for (std::size_t part = next++; part < kParts && !failed; part = next++) {
        if (polls) poll();
        for (std::size_t i = part; i < words_.size(); i += kParts)
          work(part, words_[i]);
      }
    });
  }

  [[nodiscard]] Trie trie_of_pieces() const {
    Trie out;
    for (std::size_t i = 0; i < pieces_.size(); ++i)
      out.add(pieces_[i].text, static_cast<std::int32_t>(i));
    return out;
  }

  template <class Number>
  using Parts = std::array<std::vector<Number>, kParts>;
  template <class Number>
  [[nodiscard]] Parts<Number> parts() const {
    Parts<Number> out;
    out.fill(std::vector<Number>(pieces_.size(), 0));
    return out;
  }
  template <class Number>
  [[nodiscard]] static std::vector<Number> sum(const Parts<Number>& parts) {
    std::vector<Number> out = parts[0];
    for (std::size_t part = 1; part < kParts; ++part)
      for (std::size_t i = 0; i < out.size(); ++i)
        out[i] += parts[part][i];
    return out;
  }

  [[nodiscard]] std::vector<double> expected() const {
    const Trie trie = trie_of_pieces();
    auto found = parts<double>();
    for_each_word([&](std::size_t part, const Word& word) {
      Cuts(word.text, trie).expect(pieces_, static_cast<double>(word.count), found[part]);
    });
    return sum(found);
  }

  /// Sets the probabilities from expected counts; pieces with a count of 0 are dropped.
  void maximize(const std::vector<double>& expected) {
    std::vector<Piece> kept;
    double all = 0;
    for (std::size_t i = 0; i < pieces_.size(); ++i) {
      Piece& piece = pieces_[i];
      if (!piece.is_character && expected[i] < kLeastExpected) continue;
      piece.score = std::max(expected[i], kLeastExpected);
      all += piece.score;
      kept.push_back(std::move(piece));
    }
    const double log_all = digamma(all);
    for (Piece& piece : kept)
      piece.score = digamma(piece.score) - log_all;
    pieces_ = std::move(kept);
  }

  /// Drops the pieces whose removal costs the least likelihood, down to `enough` or a fraction of
  /// them. Returns false if nothing could be dropped.
  bool prune(std::size_t enough) {
    const Trie trie = trie_of_pieces();
    auto uses = parts<std::int64_t>(), holders = parts<std::int64_t>();
    for_each_word([&](std::size_t part, const Word& word) {
      std::vector<std::size_t> cut = Cuts(word.text, trie).best(pieces_).pieces;
      for (const std::size_t piece : cut)
        uses[part][piece] += word.count;
      std::ranges::sort(cut);
      const auto same = std::ranges::unique(cut);
      cut.erase(same.begin(), same.end());
      for (const std::size_t piece : cut)
        holders[part][piece] += word.count;
    });
    const std::vector<std::int64_t> used = sum(uses), held = sum(holders);
    double all = 0;
    for (const std::int64_t count : used)
      all += static_cast<double>(count);
    struct Loss {
      std::size_t piece;
      double loss;
    };
    std::vector<Loss> losses;
    std::vector<bool> kept(pieces_.size());
    std::size_t characters = 0;
    for (std::size_t i = 0; i < pieces_.size(); ++i) {
      if (pieces_[i].is_character) {
        kept[i] = true;
        ++characters;
      } else if (used[i] > 0) {
        losses.push_back({i, loss_of(i, trie, used, static_cast<double>(held[i]), all)});
      }
    }
    std::ranges::sort(losses, [](const Loss& a, const Loss& b) {
      return a.loss != b.loss ? a.loss > b.loss : a.piece < b.piece;
    });
    const std::size_t target =
        std::max(enough, static_cast<std::size_t>(kKept * static_cast<double>(pieces_.size())));
    for (std::size_t i = 0; i < losses.size() && characters + i < target; ++i)
      kept[losses[i].piece] = losses[i].loss > kNever;
    std::vector<Piece> rest;
    for (std::size_t i = 0; i < pieces_.size(); ++i) {
      if (kept[i]) rest.push_back(std::move(pieces_[i]));
    }
    const bool fewer = rest.size() < kept.size();
    pieces_ = std::move(rest);
    return fewer;
  }

  /// Returns the mean loss of likelihood per word of the text if the piece is replaced by the next
  /// best ones.
  [[nodiscard]] double loss_of(std::size_t piece,
                               const Trie& trie,
                               const std::vector<std::int64_t>& used,
                               double held,
                               double all) const {
    const Cuts::Best instead = Cuts(pieces_[piece].text, trie).best(pieces_, piece);
    // If other pieces represent it with a higher score, the piece is not needed.
    if (instead.score >= pieces_[piece].score) return kNever;
    const auto count = static_cast<double>(used[piece]);
    const double others = static_cast<double>(instead.pieces.size()) - 1;
    const double with = std::log(count) - std::log(all), log_more = std::log(all + count * others);
    double without = 0;
    for (const std::size_t part : instead.pieces)
      without += std::log(static_cast<double>(used[part]) + count) - log_more;
    return held / all * (with - without);
  }

  [[nodiscard]] std::vector<ScoredPiece> finish(std::size_t wanted) {
    std::ranges::sort(pieces_, [](const Piece& a, const Piece& b) {
      if (a.is_character != b.is_character) return a.is_character;
      return a.score != b.score ? a.score > b.score : a.text < b.text;
    });
    const auto characters = static_cast<std::size_t>(
        std::ranges::count_if(pieces_, [](const Piece& piece) { return piece.is_character; }));
    pieces_.resize(std::min(pieces_.size(), std::max(wanted, characters)));
    std::ranges::sort(pieces_, [](const Piece& a, const Piece& b) {
      return a.score != b.score ? a.score > b.score : a.text < b.text;
    });
    std::vector<ScoredPiece> out;
    for (Piece& piece : pieces_)
      out.emplace_back(std::move(piece.text), piece.score);
    return out;
  }

  const UnigramOptions& options_;
  std::vector<Word> words_;
  std::vector<Piece> pieces_;
};

}  // namespace

std::vector<ScoredPiece> learn_unigram(const PieceCounts& words, const UnigramOptions& options) {
  return UnigramLearner(words, options).learn();
}

}  // namespace tessera::text::tokenizers
