// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/text_scores.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <utility>

#include "tessera/base/text.h"

namespace tessera::tasks {
namespace {

using WordList = std::vector<std::string>;

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

WordList rouge_words(std::string_view text) {
  WordList out;
  std::string word;
  const auto end = [&] {
    if (!word.empty()) out.push_back(std::exchange(word, {}));
  };
  for (const char c : text) {
    const char lower = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    if ((lower >= 'a' && lower <= 'z') || is_digit(lower)) {
      word += lower;
    } else {
      end();
    }
    if (out.size() == kMostRougeWords) return out;
  }
  end();
  return out;
}

/// Counts how often each run of `order` words occurs.
using Counts = std::map<WordList, std::int64_t>;
Counts counts_of(const WordList& words, std::size_t order) {
  Counts out;
  for (std::size_t i = 0; i + order <= words.size(); ++i) {
    const auto begin = words.begin() + static_cast<std::ptrdiff_t>(i);
    ++out[WordList(begin, begin + static_cast<std::ptrdiff_t>(order))];
  }
  return out;
}

std::int64_t total_of(const Counts& counts) {
  std::int64_t total = 0;
  for (const auto& [words, count] : counts)
    total += count;
  return total;
}

std::int64_t common_in(const Counts& a, const Counts& b) {
  std::int64_t common = 0;
  for (const auto& [words, count] : a) {
    const auto found = b.find(words);
    if (found != b.end()) common += std::min(count, found->second);
  }
  return common;
}

double f_measure(double common, double written, double expected) {
  if (common == 0) return 0.0;
  const double precision = common / written, recall = common / expected;
  return 2 * precision * recall / (precision + recall);
}

double rouge_of(const WordList& written, const WordList& expected, std::size_t order) {
  const Counts a = counts_of(written, order), b = counts_of(expected, order);
  return f_measure(static_cast<double>(common_in(a, b)),
                   static_cast<double>(std::max<std::int64_t>(1, total_of(a))),
                   static_cast<double>(std::max<std::int64_t>(1, total_of(b))));
}

std::size_t longest_common(const WordList& a, const WordList& b) {
  std::vector<std::size_t> row(b.size() + 1, 0);
  for (const std::string& word : a) {
    std::size_t diagonal = 0;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t above = row[j + 1];
      row[j + 1] = word == b[j] ? diagonal + 1 : std::max(above, row[j]);
      diagonal = above;
    }
  }
  return row.back();
}

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (std::size_t at = text.find(from); at != std::string::npos; at = text.find(from, at)) {
    text.replace(at, from.size(), to);
    at += to.size();
  }
}

/// Signs that 13a makes words of their own wherever they stand: those of ASCII but for the
/// apostrophe, comma, hyphen and full stop.
bool is_sign(char c) {
  const auto in = [c](char first, char last) { return c >= first && c <= last; };
  return in('{', '~') || in('[', '`') || in(' ', '&') || in('(', '+') || in(':', '@') || c == '/';
}

/// The words of the tokenizer 13a of mteval, which sacrebleu uses: rules one after the other over
/// the whole text, as their regular expressions replace.
WordList bleu_words(std::string_view text) {
  std::string line(text);
  replace_all(line, "<skipped>", "");
  replace_all(line, "-\n", "");
  replace_all(line, "\n", " ");
  for (const auto& [entity, sign] : {std::pair{"&quot;", "\""},
                                     std::pair{"&amp;", "&"},
                                     std::pair{"&lt;", "<"},
                                     std::pair{"&gt;", ">"}})
    replace_all(line, entity, sign);
  std::string signs = " ";
  for (const char c : line) {
    if (is_sign(c)) {
      signs += {' ', c, ' '};
    } else {
      signs += c;
    }
  }
  signs += ' ';
  // A full stop or comma is apart unless digits stand on both sides. Matches do not overlap: what
  // one has taken begins no other.
  const auto is_stop = [](char c) { return c == '.' || c == ','; };
  std::string before;
  for (std::size_t i = 0; i < signs.size(); ++i) {
    if (i + 1 < signs.size() && !is_digit(signs[i]) && is_stop(signs[i + 1])) {
      before += {signs[i], ' ', signs[i + 1], ' '};
      ++i;
    } else {
      before += signs[i];
    }
  }
  std::string behind;
  for (std::size_t i = 0; i < before.size(); ++i) {
    if (i + 1 < before.size() && is_stop(before[i]) && !is_digit(before[i + 1])) {
      behind += {' ', before[i], ' ', before[i + 1]};
      ++i;
    } else {
      behind += before[i];
    }
  }
  std::string apart;
  for (std::size_t i = 0; i < behind.size(); ++i) {
    apart += behind[i];
    if (is_digit(behind[i]) && i + 1 < behind.size() && behind[i + 1] == '-') {
      apart += " - ";
      ++i;
    }
  }
  WordList out;
  std::string word;
  for (const char c : apart + " ") {
    const bool blank = c == ' ' || (c >= '\t' && c <= '\r');
    if (!blank) word += c;
    if (blank && !word.empty()) out.push_back(std::exchange(word, {}));
  }
  return out;
}

constexpr std::size_t kOrders = 4;

}  // namespace

Rouge rouge(const WrittenText& text) {
  const WordList written = rouge_words(text.written), expected = rouge_words(text.expected);
  Rouge out;
  out.rouge1 = rouge_of(written, expected, 1);
  out.rouge2 = rouge_of(written, expected, 2);
  out.rouge_l = f_measure(static_cast<double>(longest_common(written, expected)),
                          static_cast<double>(written.size()),
                          static_cast<double>(expected.size()));
  return out;
}

double bleu(const std::vector<WrittenText>& texts) {
  std::array<double, kOrders> common{}, total{};
  double written_words = 0, expected_words = 0;
  for (const WrittenText& text : texts) {
    const WordList written = bleu_words(text.written), expected = bleu_words(text.expected);
    written_words += static_cast<double>(written.size());
    expected_words += static_cast<double>(expected.size());
    for (std::size_t n = 0; n < kOrders; ++n) {
      const Counts a = counts_of(written, n + 1), b = counts_of(expected, n + 1);
      common[n] += static_cast<double>(common_in(a, b));
      total[n] += static_cast<double>(total_of(a));
    }
  }
  if (common[0] == 0) return 0.0;
  double logs = 0, smoothing = 1;
  for (std::size_t n = 0; n < kOrders; ++n) {
    if (total[n] == 0) return 0.0;
    if (common[n] == 0) smoothing *= 2;
    const double precision = common[n] > 0 ? common[n] / total[n] : 1.0 / (smoothing * total[n]);
    logs += std::log(precision);
  }
  const double brevity =
      written_words < expected_words ? std::exp(1 - expected_words / written_words) : 1.0;
  return 100 * brevity * std::exp(logs / static_cast<double>(kOrders));
}

std::vector<NamedValue> text_scores(const std::vector<WrittenText>& texts) {
  if (texts.empty()) return {};
  double equal = 0;
  Rouge sum;
  for (const WrittenText& text : texts) {
    if (text::trim(text.written) == text::trim(text.expected)) ++equal;
    const Rouge one = rouge(text);
    sum.rouge1 += one.rouge1;
    sum.rouge2 += one.rouge2;
    sum.rouge_l += one.rouge_l;
  }
  const auto count = static_cast<double>(texts.size());
  const std::array<double, kTextScores.size()> values = {
      equal / count, sum.rouge1 / count, sum.rouge2 / count, sum.rouge_l / count, bleu(texts)};
  std::vector<NamedValue> out;
  for (std::size_t i = 0; i < values.size(); ++i)
    out.push_back({std::string(kTextScores[i]), values[i]});
  return out;
}

}  // namespace tessera::tasks
