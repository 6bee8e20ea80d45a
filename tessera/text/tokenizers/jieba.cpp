// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/tokenizers/jieba.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <map>
#include <optional>
#include <span>
#include <string_view>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/text/tokenizers/characters.h"

namespace tessera::text::tokenizers {
namespace {

namespace fs = std::filesystem;

constexpr double kImpossible = -3.14e100;
constexpr std::string_view kLetters = "BEMS";
constexpr std::size_t kBegin = 0, kEnd = 1, kMiddle = 2, kSingle = 3;
constexpr const char* kPackage = "/usr/lib/python3/dist-packages/jieba";

[[noreturn]] void refuse_file(const std::string& where, const std::string& what) {
  throw Error(Error::Kind::Format,
              where + ": " + what,
              "install jieba 0.42.1 again: apt-get install --reinstall python3-jieba");
}

bool is_chinese(char32_t c) {
  return c >= 0x4E00 && c <= 0x9FD5;
}
bool is_ascii_letter_or_digit(char32_t c) {
  return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
}
bool is_digit(char32_t c) {
  return c >= '0' && c <= '9';
}
/// The characters of runs that are looked up in the dictionary.
bool is_of_words(char32_t c) {
  constexpr std::u32string_view kOthers = U"+#&._%-";
  return is_chinese(c) || is_ascii_letter_or_digit(c) ||
         kOthers.find(c) != std::u32string_view::npos;
}

/// Reads "P = {...}" of Python: an object of numbers, or of objects of numbers, with keys of one
/// character.
class PythonTable {
 public:
  using Numbers = std::map<char32_t, double>;

  PythonTable(const std::string& text, std::string where) : text_(text), where_(std::move(where)) {
    at_ = text_.find("P=");
    if (at_ == std::string::npos) refuse_file(where_, "it has no table P");
    at_ += 2;
  }
  Numbers numbers() {
    Numbers out;
    each_key([&](char32_t key) { out[key] = number(); });
    return out;
  }
  std::map<char32_t, Numbers> tables() {
    std::map<char32_t, Numbers> out;
    each_key([&](char32_t key) { out[key] = numbers(); });
    return out;
  }

 private:
  template <class Value>
  void each_key(const Value& value) {
    take('{');
    while (peek() != '}') {
      const char32_t letter = key();
      take(':');
      value(letter);
      if (peek() == ',') ++at_;
    }
    take('}');
  }
  char peek() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\r'))
      ++at_;
    if (at_ >= text_.size()) refuse_file(where_, "it ends within a table");
    return text_[at_];
  }
  void take(char wanted) {
    if (peek() != wanted)
      refuse_file(where_, fmt::format("'{}' is expected at byte {}", wanted, at_));
    ++at_;
  }
  char32_t key() {
    take('\'');
    char32_t out = 0;
    const bool escaped = text_.compare(at_, 2, "\\u") == 0;
    if (escaped) {
      constexpr std::size_t kHex = 4;
      unsigned value = 0;
      const char* const first = text_.data() + at_ + 2;
      const auto end = std::min(text_.size(), at_ + 2 + kHex);
      const auto read = std::from_chars(first, text_.data() + end, value, 16);
      if (read.ptr != first + kHex)
        refuse_file(where_, fmt::format("no character at byte {}", at_));
      out = value;
      at_ += 2 + kHex;
    } else {
      out = next_character(text_, at_);
    }
    if (at_ >= text_.size() || text_[at_] != '\'')
      refuse_file(where_, fmt::format("more than a character at byte {}", at_));
    ++at_;
    return out;
  }
  double number() {
    (void)peek();
    double out = 0.0;
    const auto read = std::from_chars(text_.data() + at_, text_.data() + text_.size(), out);
    if (read.ec != std::errc()) refuse_file(where_, fmt::format("no number at byte {}", at_));
    at_ = static_cast<std::size_t>(read.ptr - text_.data());
    return out;
  }

  const std::string& text_;
  std::string where_;
  std::size_t at_ = 0;
};

std::size_t state_of(char32_t letter, const std::string& where) {
  const std::size_t state = kLetters.find(static_cast<char>(letter));
  if (letter > 'Z' || state == std::string_view::npos) refuse_file(where, "an unknown state");
  return state;
}

}  // namespace

fs::path Jieba::find() {
  const char* const given = std::getenv("TESSERA_JIEBA");
  if (given != nullptr && *given != '\0') return given;
  std::error_code ignored;
  TESSERA_REQUIRE(
      fs::exists(fs::path(kPackage) / "dict.txt", ignored),
      Config,
      fmt::format("the tokenizer cuts Chinese text into words by jieba's dictionary, and "
                  "there is no {}/dict.txt",
                  kPackage),
      "apt-get install python3-jieba, or set TESSERA_JIEBA to the folder \"jieba\" of "
      "Python's packages");
  return kPackage;
}

Jieba::Jieba(const fs::path& folder) {
  const std::string text = files::read(folder / "dict.txt");
  fingerprint_ = files::hex64(files::xxh3(std::as_bytes(std::span(text))));
  read_dictionary(text, (folder / "dict.txt").string());
  read_model(folder / "finalseg");
}

void Jieba::read_dictionary(const std::string& text, const std::string& where) {
  constexpr std::size_t kUsual = std::size_t{1} << 20U;
  edges_.reserve(kUsual);
  frequencies_.reserve(kUsual);
  if (!is_valid_utf8(text)) refuse_file(where, "it is not UTF-8");
  std::int64_t total = 0, number = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line(text.data() + begin, end - begin);
    begin = end + 1;
    ++number;
    const std::size_t space = line.find(' ');
    std::int64_t frequency = 0;
    const bool right =
        space != std::string_view::npos && space > 0 &&
        std::from_chars(line.data() + space + 1, line.data() + line.size(), frequency).ec ==
            std::errc() &&
        frequency >= 0;
    if (!right) refuse_file(where, fmt::format("line {} is not a word and its frequency", number));
    std::uint32_t node = 0;
    for (std::size_t at = 0; at < space;) {
      const std::uint64_t key = std::uint64_t{node} << 21U | next_character(line, at);
      const auto [edge, is_new] =
          edges_.try_emplace(key, static_cast<std::uint32_t>(frequencies_.size()));
      if (is_new) frequencies_.push_back(0);
      node = edge->second;
    }
    frequencies_[node] = frequency;
    total += frequency;
  }
  if (total == 0) refuse_file(where, "it has no words");
  log_total_ = std::log(static_cast<double>(total));
}

void Jieba::read_model(const fs::path& folder) {
  const auto read = [&](const char* name) {
    std::string text = files::read(folder / name);
    fingerprint_ += files::hex64(files::xxh3(std::as_bytes(std::span(text))));
    return text;
  };
  start_.fill(kImpossible);
  for (OfStates& from : transitions_)
    from.fill(kImpossible);
  const std::string where = folder.string();
  const std::string starts = read("prob_start.py"), transitions = read("prob_trans.py"),
                    emissions = read("prob_emit.py");
  for (const auto& [letter, value] : PythonTable(starts, where + "/prob_start.py").numbers())
    start_[state_of(letter, where)] = value;
  for (const auto& [from, values] : PythonTable(transitions, where + "/prob_trans.py").tables()) {
    for (const auto& [to, value] : values)
      transitions_[state_of(from, where)][state_of(to, where)] = value;
  }
  for (const auto& [letter, values] : PythonTable(emissions, where + "/prob_emit.py").tables()) {
    const std::size_t state = state_of(letter, where);
    for (const auto& [character, value] : values) {
      const auto [of, is_new] = emissions_.try_emplace(character);
      if (is_new) of->second.fill(kImpossible);
      of->second[state] = value;
    }
  }
}

std::uint32_t Jieba::next(std::uint32_t node, char32_t c) const {
  const auto edge = edges_.find(std::uint64_t{node} << 21U | c);
  return edge == edges_.end() ? 0 : edge->second;
}

std::int64_t Jieba::frequency(const std::vector<char32_t>& text,
                              std::size_t begin,
                              std::size_t end) const {
  std::uint32_t node = 0;
  for (std::size_t at = begin; at < end; ++at) {
    node = next(node, text[at]);
    if (node == 0) return 0;
  }
  return frequencies_[node];
}

std::vector<std::size_t> Jieba::cut(const std::vector<char32_t>& text) const {
  Ends out;
  for (std::size_t at = 0; at < text.size();) {
    if (!is_of_words(text[at])) {
      const bool pair = text[at] == '\r' && at + 1 < text.size() && text[at + 1] == '\n';
      at += pair ? 2 : 1;
      out.push_back(at);
      continue;
    }
    const std::size_t begin = at;
    while (at < text.size() && is_of_words(text[at]))
      ++at;
    cut_run(text, begin, at, out);
  }
  return out;
}

void Jieba::cut_run(const std::vector<char32_t>& text,
                    std::size_t begin,
                    std::size_t end,
                    Ends& out) const {
  // The best path from each character to the end: its logarithm, and the end of its first word. Of
  // equally probable words the longer one is taken.
  struct Step {
    double log_probability = 0.0;
    std::size_t end = 0;
  };
  std::vector<Step> route(end - begin + 1);
  for (std::size_t at = end; at-- > begin;) {
    std::optional<Step> best;
    const auto offer = [&](std::int64_t frequency, std::size_t word_end) {
      const double value = std::log(static_cast<double>(frequency)) - log_total_ +
                           route[word_end - begin].log_probability;
      if (!best || value >= best->log_probability) best = Step{value, word_end};
    };
    std::uint32_t node = 0;
    for (std::size_t last = at; last < end; ++last) {
      node = next(node, text[last]);
      if (node == 0) break;
      if (frequencies_[node] > 0) offer(frequencies_[node], last + 1);
    }
    if (!best) offer(1, at + 1);
    route[at - begin] = *best;
  }
  std::size_t single = begin;  // the first of the single characters before `at`
  const auto flush = [&](std::size_t at) {
    if (at - single > 1 && frequency(text, single, at) == 0) {
      cut_unknown(text, single, at, out);
    } else {
      for (std::size_t one = single; one < at; ++one)
        out.push_back(one + 1);
    }
  };
  for (std::size_t at = begin; at < end;) {
    const std::size_t word_end = route[at - begin].end;
    if (word_end - at > 1) {
      flush(at);
      out.push_back(word_end);
      single = word_end;
    }
    at = word_end;
  }
  flush(end);
}

void Jieba::cut_unknown(const std::vector<char32_t>& text,
                        std::size_t begin,
                        std::size_t end,
                        Ends& out) const {
  for (std::size_t at = begin; at < end;) {
    const std::size_t first = at;
    if (is_chinese(text[at])) {
      while (at < end && is_chinese(text[at]))
        ++at;
      cut_by_states(text, first, at, out);
      continue;
    }
    if (is_ascii_letter_or_digit(text[at])) {
      while (at < end && is_ascii_letter_or_digit(text[at]))
        ++at;
      if (at + 1 < end && text[at] == '.' && is_digit(text[at + 1])) {
        ++at;
        while (at < end && is_digit(text[at]))
          ++at;
      }
      if (at < end && text[at] == '%') ++at;
    } else {
      while (at < end && !is_chinese(text[at]) && !is_ascii_letter_or_digit(text[at]))
        ++at;
    }
    out.push_back(at);
  }
}

void Jieba::cut_by_states(const std::vector<char32_t>& text,
                          std::size_t begin,
                          std::size_t end,
                          Ends& out) const {
  static constexpr std::array<std::array<std::size_t, 2>, kStates> kBefore = {
      {{kEnd, kSingle}, {kBegin, kMiddle}, {kBegin, kMiddle}, {kEnd, kSingle}}};
  static const OfStates kNone = {kImpossible, kImpossible, kImpossible, kImpossible};
  const auto emission = [&](std::size_t at) -> const OfStates& {
    const auto found = emissions_.find(text[at]);
    return found == emissions_.end() ? kNone : found->second;
  };
  const std::size_t count = end - begin;
  std::vector<OfStates> values(count);
  std::vector<std::array<std::uint8_t, kStates>> from(count);
  for (std::size_t state = 0; state < kStates; ++state)
    values[0][state] = start_[state] + emission(begin)[state];
  for (std::size_t t = 1; t < count; ++t) {
    const OfStates& emitted = emission(begin + t);
    for (std::size_t state = 0; state < kStates; ++state) {
      const auto [a, b] = kBefore[state];
      const double by_a = values[t - 1][a] + transitions_[a][state] + emitted[state],
                   by_b = values[t - 1][b] + transitions_[b][state] + emitted[state];
      // If both values are equal, jieba chooses the state with the later letter, which is `b`.
      const bool first = by_a > by_b;
      values[t][state] = first ? by_a : by_b;
      from[t][state] = static_cast<std::uint8_t>(first ? a : b);
    }
  }
  std::size_t state = values[count - 1][kEnd] > values[count - 1][kSingle] ? kEnd : kSingle;
  const std::size_t first = out.size();
  for (std::size_t t = count; t-- > 0;) {
    if (state == kEnd || state == kSingle) out.push_back(begin + t + 1);
    state = from[t][state];
  }
  std::reverse(out.begin() + static_cast<std::ptrdiff_t>(first), out.end());
}

}  // namespace tessera::text::tokenizers
