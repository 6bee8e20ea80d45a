// SPDX-License-Identifier: Apache-2.0
// Reward 1 for a completion whose last answer equals that of its record as an exact rational
// number. Nothing is evaluated: an answer is one number, fraction or percentage.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/tasks/rl/reward.h"

namespace tessera::tasks {
namespace {

struct MathsOptions {
  std::string field = "answer";
  bool marked = false;
  bool ignore_percent = false;
  void describe(config::Fields& fields) {
    fields.field(
        "field",
        field,
        {.text = "Field of the record that has the number, or a text with it behind a mark."});
    fields.field("marked",
                 marked,
                 {.text = "Whether only an answer behind #### or in \\boxed{} counts; otherwise "
                          "the last number of a completion without either does."});
    fields.field("ignore_percent", ignore_percent, {.text = "Whether 50 % is 50 and not 1/2."});
  }
};

using Wide = unsigned __int128;

/// A fraction in lowest terms with a positive denominator; zero is not negative.
struct Rational {
  bool negative = false;
  Wide numerator = 0, denominator = 1;
  bool operator==(const Rational&) const = default;
};
using Number = std::optional<Rational>;  ///< none: no number, or one that 128 bits do not hold

constexpr std::size_t kLongestAnswer = 256, kLongestTail = 4096, kMostDigits = 64;

/// std::gcd() has no integers of 128 bits in strict C++.
Wide common_divisor(Wide a, Wide b) {
  while (b != 0)
    a = std::exchange(b, a % b);
  return a;
}

Number product(const Number& a, const Number& b) {
  if (!a || !b || b->denominator == 0 || a->denominator == 0) return std::nullopt;
  const auto cancel = [](Wide& x, Wide& y) {
    const Wide common = common_divisor(x, y);
    if (common <= 1) return;
    x /= common;
    y /= common;
  };
  Rational x = *a, y = *b, out;
  cancel(x.numerator, x.denominator);
  cancel(y.numerator, y.denominator);
  cancel(x.numerator, y.denominator);
  cancel(y.numerator, x.denominator);
  if (__builtin_mul_overflow(x.numerator, y.numerator, &out.numerator) ||
      __builtin_mul_overflow(x.denominator, y.denominator, &out.denominator))
    return std::nullopt;
  out.negative = out.numerator != 0 && x.negative != y.negative;
  return out;
}
Number quotient(const Number& a, const Number& b) {
  if (!b || b->numerator == 0) return std::nullopt;
  return product(a, Rational{b->negative, b->denominator, b->numerator});
}
/// Returns a + b, both of which are positive.
Number sum(const Number& a, const Number& b) {
  if (!a || !b) return std::nullopt;
  Wide x = 0, y = 0;
  Rational out;
  if (__builtin_mul_overflow(a->numerator, b->denominator, &x) ||
      __builtin_mul_overflow(b->numerator, a->denominator, &y) ||
      __builtin_add_overflow(x, y, &out.numerator) ||
      __builtin_mul_overflow(a->denominator, b->denominator, &out.denominator))
    return std::nullopt;
  return product(out, Rational{false, 1, 1});
}
Number power_of_ten(long long exponent) {
  constexpr long long kMost = 38;  // 10^38 < 2^128 < 10^39
  if (exponent < -kMost || exponent > kMost) return std::nullopt;
  Wide power = 1;
  for (long long i = 0; i < std::abs(exponent); ++i)
    power *= 10;
  return exponent < 0 ? Rational{false, 1, power} : Rational{false, power, 1};
}

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
/// Bytes of characters beyond ASCII count as letters.
bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || static_cast<unsigned char>(c) >= 0x80U;
}

/// Replaces the forms of LaTeX and Unicode that mean the same as plain text.
std::string plain(std::string_view text) {
  using Pair = std::pair<std::string_view, std::string_view>;
  constexpr auto kForms = std::to_array<Pair>({{"{,}", ","},
                                               {"\\left", ""},
                                               {"\\right", ""},
                                               {"\\dfrac", "\\frac"},
                                               {"\\tfrac", "\\frac"},
                                               {"\\cfrac", "\\frac"},
                                               {"\\%", "%"},
                                               {"\\$", "$"},
                                               {"\\(", ""},
                                               {"\\)", ""},
                                               {"\\[", ""},
                                               {"\\]", ""},
                                               {"\\,", ""},
                                               {"\\!", ""},
                                               {"\\;", " "},
                                               {"\\:", " "},
                                               {"\\ ", " "},
                                               {"~", " "},
                                               {"\\times", "*"},
                                               {"\\cdot", "*"},
                                               {"\xC3\x97", "*"},
                                               {"\xC2\xB7", "*"},
                                               {"\xE2\x88\x92", "-"},
                                               {"^\\circ", " "},
                                               {"^{\\circ}", " "},
                                               {"\xC2\xB0", " "},
                                               {"\xC2\xA0", " "},
                                               {"\\textbf{", " "},
                                               {"\\mathbf{", " "},
                                               {"\\text{", " "},
                                               {"\\mathrm{", " "},
                                               {"\\mbox{", " "},
                                               {"^{", "^"},
                                               {"\xE2\x82\xAC", "$"},
                                               {"\xC2\xA3", "$"},
                                               {"\xC2\xA5", "$"},
                                               {"\xCF\x80", "\\pi"},
                                               {"\xE2\x88\x9A", "\\sqrt"},
                                               {"\xE2\x89\x88", "\\approx"}});
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const auto form = std::ranges::find_if(
        kForms, [&](const Pair& one) { return text.substr(at).starts_with(one.first); });
    out += form != kForms.end() ? form->second : text.substr(at, 1);
    at += form != kForms.end() ? form->first.size() : 1;
  }
  return out;
}

/// Reads unsigned numbers from a text. Each read is linear in what it consumes.
class Reader {
 public:
  Reader(std::string_view text, std::size_t at) : text_(text), at_(at) {}
  [[nodiscard]] std::size_t at() const { return at_; }
  [[nodiscard]] char now(std::size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
  }
  bool take(std::string_view word) {
    const bool found = text_.substr(at_).starts_with(word);
    if (found) at_ += word.size();
    return found;
  }
  void skip(std::string_view characters) {
    at_ = std::min(text_.find_first_not_of(characters, at_), text_.size());
  }
  [[nodiscard]] bool starts_number() const {
    return is_digit(now()) || (now() == '.' && is_digit(now(1))) ||
           text_.substr(at_).starts_with("\\frac");
  }

  /// A number with everything that belongs to it: 1,234.5; 2e3; 2 * 10^3; 1/2; 1 1/2; \frac{1}{2};
  /// 50 %; 2 million.
  Number number(bool ignore_percent) {
    Number out;
    if (text_.substr(at_).starts_with("\\frac")) {
      out = fraction();
    } else {
      const bool whole_number = is_digit(now());
      const std::size_t start = at_;
      out = scaled();
      const bool plain_digits =
          whole_number && std::ranges::all_of(text_.substr(start, at_ - start), is_digit);
      if (Reader next(text_, at_); plain_digits && next.mixes()) {
        out = sum(out, next.fraction());
        *this = next;
      } else {
        out = over(out);
      }
    }
    return with_words(out, ignore_percent);
  }

 private:
  /// Moves to the fraction behind the integer of a mixed number.
  [[nodiscard]] bool mixes() {
    const bool space = now() == ' ';
    skip(" ");
    if (text_.substr(at_).starts_with("\\frac")) return true;
    std::size_t end = at_;
    while (end < text_.size() && is_digit(text_[end]))
      ++end;
    return space && end > at_ && end + 1 < text_.size() && text_[end] == '/' &&
           is_digit(text_[end + 1]);
  }
  /// \frac{a}{b}, \frac12 or a/b.
  Number fraction() {
    if (!take("\\frac")) return over(digits());
    const Number above = argument(), below = argument();
    return quotient(above, below);
  }
  Number argument() {
    skip(" ");
    if (is_digit(now())) return Rational{false, static_cast<Wide>(text_[at_++] - '0'), 1};
    if (!take("{")) return std::nullopt;
    skip(" ");
    const bool negative = take("-");
    Number out = starts_number() && now() != '\\' ? digits() : std::nullopt;
    skip(" ");
    if (!take("}")) return std::nullopt;
    if (out && out->numerator != 0) out->negative = negative;
    return out;
  }
  /// The quotient of a number and the one behind a slash, if there is one. 1/2/3 is not a number.
  Number over(Number out) {
    for (int slashes = 0; now() == '/' && is_digit(now(1)); ++slashes) {
      ++at_;
      const Number below = digits();
      out = slashes == 0 ? quotient(out, below) : std::nullopt;
    }
    return out;
  }
  /// Reads decimals and the exponent or the power of ten that may follow them.
  Number scaled() {
    const Number out = digits();
    Reader power(text_, at_);
    if ((power.take("e") || power.take("E")) &&
        (is_digit(power.now()) ||
         ((power.now() == '-' || power.now() == '+') && is_digit(power.now(1))))) {
      *this = power;
      return product(out, exponent());
    }
    power = *this;
    power.skip(" ");
    if (!power.take("*") && !power.take("x")) return out;
    power.skip(" ");
    if (!power.take("10^") && !power.take("10**")) return out;
    *this = power;
    return product(out, exponent());
  }
  Number exponent() {
    const bool negative = take("-");
    if (!negative) take("+");
    constexpr std::size_t kLongest = 3;
    long long value = 0;
    std::size_t count = 0;
    for (; is_digit(now()); ++at_, ++count)
      if (count < kLongest) value = 10 * value + (now() - '0');
    take("}");
    if (count == 0 || count > kLongest) return std::nullopt;
    return power_of_ten(negative ? -value : value);
  }
  /// 1234, 1,234,567, 12.50, .5; 1.2.3 is not a number.
  Number digits() {
    std::string whole, decimals;
    const auto run = [&](std::string& out) {
      for (; is_digit(now()); ++at_)
        if (out.size() <= kMostDigits) out += now();
    };
    run(whole);
    const auto grouped = [&] {
      return now() == ',' && is_digit(now(1)) && is_digit(now(2)) && is_digit(now(3)) &&
             !is_digit(now(4));
    };
    if (whole.size() <= 3) {
      while (grouped()) {
        ++at_;
        run(whole);
      }
    }
    bool one = true;
    for (int points = 0; now() == '.' && is_digit(now(1)); ++points) {
      ++at_;
      decimals.clear();
      run(decimals);
      one = points == 0;
    }
    if (!one || whole.size() > kMostDigits || decimals.size() > kMostDigits) return std::nullopt;
    while (!decimals.empty() && decimals.back() == '0')
      decimals.pop_back();
    Wide value = 0;
    for (const char digit : whole + decimals) {
      if (__builtin_mul_overflow(value, Wide{10}, &value) ||
          __builtin_add_overflow(value, static_cast<Wide>(digit - '0'), &value))
        return std::nullopt;
    }
    return quotient(Rational{false, value, 1},
                    power_of_ten(static_cast<long long>(decimals.size())));
  }
  Number with_words(Number out, bool ignore_percent) {
    using Word = std::pair<std::string_view, int>;
    constexpr auto kWords = std::to_array<Word>({{"%", -2},
                                                 {"percent", -2},
                                                 {"hundred", 2},
                                                 {"thousand", 3},
                                                 {"million", 6},
                                                 {"billion", 9},
                                                 {"trillion", 12}});
    Reader next(text_, at_);
    next.skip(" ");
    for (const auto& [word, exponent] : kWords) {
      if (!next.take(word)) continue;
      if (word != "%" && is_letter(next.now())) return out;  // the beginning of another word
      *this = next;
      return ignore_percent && exponent < 0 ? out : product(out, power_of_ten(exponent));
    }
    return out;
  }

  std::string_view text_;
  std::size_t at_;
};

/// Returns true if `rest`, which follows a number, consists of units and punctuation, so that the
/// number is the whole answer.
bool only_units(std::string_view rest) {
  const std::string_view first = text::trim(rest);
  for (const char* const factor : {"pi", "sqrt", "e", "i", "x", "y", "z"}) {
    const std::string_view name = factor;
    if (first.starts_with(name) && (first.size() == name.size() || !is_letter(first[name.size()])))
      return false;
  }
  if (rest.starts_with("(")) return false;
  for (std::size_t i = 0; i < rest.size(); ++i) {
    const char c = rest[i], before = i > 0 ? rest[i - 1] : ' ',
               after = i + 1 < rest.size() ? rest[i + 1] : ' ';
    const bool within_a_unit = is_letter(before);
    const bool operation = std::string_view("+=<>|\\{").find(c) != std::string_view::npos ||
                           (c == '*' && before != '*' && after != '*') ||
                           (is_digit(c) && !within_a_unit && before != '^') ||
                           ((c == '^' || c == '/' || c == '-') && !within_a_unit);
    if (operation) return false;
  }
  return true;
}

/// The number that is the whole of an answer, besides currency, units and punctuation.
Number whole_answer(std::string_view answer, bool ignore_percent) {
  if (answer.size() > kLongestAnswer) return std::nullopt;
  std::string text = plain(answer);
  if (const std::size_t equals = text.rfind('='); equals != std::string::npos)
    text.erase(0, equals + 1);
  Reader reader(text, 0);
  reader.skip(" \t\r\n*_{$");
  const bool negative = reader.take("-");
  if (!negative) reader.take("+");
  reader.skip(" $");
  if (!reader.starts_number()) return std::nullopt;
  Number out = reader.number(ignore_percent);
  if (!only_units(std::string_view(text).substr(reader.at()))) return std::nullopt;
  if (out && out->numerator != 0) out->negative = negative != out->negative;
  return out;
}

/// The last number of a text; none if the last one is too large.
Number last_number(std::string_view whole, bool ignore_percent) {
  const std::string text = plain(whole.substr(whole.size() - std::min(whole.size(), kLongestTail)));
  Number out;
  for (std::size_t i = 0; i < text.size();) {
    Reader reader(text, i);
    if (!reader.starts_number() || (i > 0 && (is_letter(text[i - 1]) || text[i - 1] == '_'))) {
      i += 1;
      while (i < text.size() && is_digit(text[i - 1]) && is_digit(text[i]))
        ++i;
      continue;
    }
    std::size_t start = i;
    while (start > 0 && text[start - 1] == '$')
      --start;
    const bool minus = start > 0 && text[start - 1] == '-';
    const char before = minus && start > 1 ? text[start - 2] : ' ';
    const bool sign = minus && !is_digit(before) && !is_letter(before) && before != ')' &&
                      before != '}' && before != '-';
    out = reader.number(ignore_percent);
    if (out && out->numerator != 0) out->negative = sign != out->negative;
    i = std::max(reader.at(), i + 1);
  }
  return out;
}

/// Returns the text behind the last mark, which may be empty; none if there is no mark.
std::optional<std::string_view> behind_mark(std::string_view text) {
  constexpr std::string_view kHashes = "####", kBox = "\\boxed{";
  const std::size_t hashes = text.rfind(kHashes), box = text.rfind(kBox);
  if (hashes == std::string_view::npos && box == std::string_view::npos) return std::nullopt;
  if (box == std::string_view::npos || (hashes != std::string_view::npos && hashes > box)) {
    std::string_view out = text.substr(hashes + kHashes.size());
    out.remove_prefix(std::min(out.find_first_not_of(" \t\r\n"), out.size()));
    return out.substr(0, out.find('\n'));
  }
  const std::string_view content = text.substr(box + kBox.size());
  int depth = 1;
  for (std::size_t i = 0; i < std::min(content.size(), kLongestAnswer); ++i) {
    if (content[i] == '{') ++depth;
    if (content[i] == '}' && --depth == 0) return content.substr(0, i);
  }
  return std::string_view();
}

class Maths final : public RuleReward {
 public:
  explicit Maths(MathsOptions options) : options_(std::move(options)) {}
  [[nodiscard]] double of(const Answer& answer) const override {
    const std::string text = field_text(answer, options_.field);
    const Number wanted = whole_answer(behind_mark(text).value_or(text), options_.ignore_percent);
    TESSERA_REQUIRE(wanted.has_value(),
                    Data,
                    fmt::format("{}: \"{}\" is not a single number", answer.place, options_.field),
                    "give a number or fraction of at most 38 digits, alone, behind #### or in "
                    "\\boxed{}");
    const Number given = of_completion(answer.text);
    return given && *given == *wanted ? 1.0 : 0.0;
  }

 private:
  [[nodiscard]] Number of_completion(std::string_view text) const {
    if (const auto marked = behind_mark(text))
      return whole_answer(*marked, options_.ignore_percent);
    return options_.marked ? std::nullopt : last_number(text, options_.ignore_percent);
  }
  MathsOptions options_;
};

std::unique_ptr<RuleReward> make_maths(const json::Value& params,
                                       config::Problems& problems,
                                       config::Origins& origins) {
  MathsOptions options;
  config::read(params, options, problems, origins);
  return std::make_unique<Maths>(std::move(options));
}

TESSERA_RL_REWARD("maths", make_maths);

}  // namespace
}  // namespace tessera::tasks
