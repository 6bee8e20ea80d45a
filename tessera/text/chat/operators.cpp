// SPDX-License-Identifier: Apache-2.0
// Arithmetic operators of templates.
#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>
#include <fmt/printf.h>

#include "tessera/text/chat/interpreter.h"
#include "tessera/text/chat/python_text.h"

namespace tessera::text::chat {
namespace {

[[noreturn]] void unsupported(std::string_view name, const Value& left, const Value& right) {
  fail(fmt::format("unsupported operand types for {}: '{}' and '{}'",
                   name,
                   left.type_name(),
                   right.type_name()));
}

Value repeat(const Value& value, std::int64_t count, Budget& budget) {
  count = std::max<std::int64_t>(count, 0);
  const std::size_t size =
      value.is_text() ? value.as_text().size() : value.items().size() * sizeof(Value);
  if (size == 0) count = 0;
  if (count > 0 &&
      size > static_cast<std::size_t>(std::numeric_limits<std::int64_t>::max() / count))
    fail("a repeated value is too long");
  budget.bytes(size * static_cast<std::size_t>(count));
  if (value.is_text()) {
    std::string out;
    for (std::int64_t i = 0; i < count; ++i)
      out += value.as_text();
    return Value::text(std::move(out), budget);
  }
  std::vector<Value> out;
  for (std::int64_t i = 0; i < count; ++i)
    out.insert(out.end(), value.items().begin(), value.items().end());
  return Value::list(std::move(out), budget, value.is_tuple());
}

Value power(std::int64_t base, std::int64_t exponent) {
  if (exponent < 0) {
    if (base == 0) fail("0 cannot be raised to a negative power");
    return Value::real(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  }
  std::int64_t out = 1;
  while (exponent > 0) {
    if ((exponent & 1) != 0 && __builtin_mul_overflow(out, base, &out))
      fail("an integer beyond 64 bits");
    exponent >>= 1;
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base))
      fail("an integer beyond 64 bits");
  }
  return Value::integer(out);
}

Value of_integers(std::string_view name, std::int64_t a, std::int64_t b) {
  std::int64_t out = 0;
  bool overflow = false;
  if (name == "+") {
    overflow = __builtin_add_overflow(a, b, &out);
  } else if (name == "-") {
    overflow = __builtin_sub_overflow(a, b, &out);
  } else if (name == "*") {
    overflow = __builtin_mul_overflow(a, b, &out);
  } else if (name == "**") {
    return power(a, b);
  } else {
    if (b == 0) fail("division by zero");
    if (name == "/") return Value::real(static_cast<double>(a) / static_cast<double>(b));
    overflow = b == -1 && a == std::numeric_limits<std::int64_t>::min();
    if (!overflow) {
      // Python rounds towards minus infinity.
      const std::int64_t rest = a % b;
      const bool below = rest != 0 && (rest < 0) != (b < 0);
      out = name == "//" ? a / b - (below ? 1 : 0) : rest + (below ? b : 0);
    }
  }
  if (overflow) fail("an integer beyond 64 bits");
  return Value::integer(out);
}

Value of_reals(std::string_view name, double a, double b) {
  if (name == "+") return Value::real(a + b);
  if (name == "-") return Value::real(a - b);
  if (name == "*") return Value::real(a * b);
  if (name == "**") return Value::real(std::pow(a, b));
  if (b == 0.0) fail("division by zero");
  if (name == "/") return Value::real(a / b);
  double rest = std::fmod(a, b);
  if (rest != 0.0 && (rest < 0) != (b < 0)) rest += b;
  if (name == "%") return Value::real(rest == 0.0 ? std::copysign(0.0, b) : rest);
  return Value::real(std::round((a - rest) / b));
}

/// Parses %[(name)][flags][width][.precision]type of printf and formats values.
class PercentFormat {
 public:
  PercentFormat(const std::string& text, const Value& values, Budget& budget)
      : text_(text), values_(values), budget_(budget) {}

  std::string run() {
    while (at_ < text_.size()) {
      if (text_[at_] != '%') {
        out_ += text_[at_++];
        continue;
      }
      ++at_;
      directive();
    }
    const std::size_t given = values_.is_tuple() ? values_.items().size() : 1;
    if (used_ < given && !values_.is_dict() && !(values_.is_tuple() && given == 0))
      fail("not all arguments converted during string formatting");
    return std::move(out_);
  }

 private:
  Value next() {
    if (values_.is_tuple()) {
      if (used_ >= values_.items().size()) fail("not enough arguments for format string");
      return values_.items()[used_++];
    }
    if (used_++ > 0) fail("not enough arguments for format string");
    return values_;
  }
  std::string run_of(std::string_view letters) {
    std::string found;
    while (at_ < text_.size() && letters.find(text_[at_]) != std::string_view::npos &&
           found.size() < 4)
      found += text_[at_++];
    return found;
  }
  void directive() {
    Value value;
    bool chosen = false;
    if (at_ < text_.size() && text_[at_] == '(') {
      const std::size_t close = text_.find(')', at_);
      if (close == std::string::npos || !values_.is_dict()) fail("format requires a mapping");
      const Value key = Value::text(text_.substr(at_ + 1, close - at_ - 1), budget_);
      const Value* found = values_.find(key, budget_);
      if (found == nullptr) fail("the format has no value for " + key.as_text());
      value = *found;
      chosen = true;
      at_ = close + 1;
    }
    const std::string flags = run_of("-+ 0#"), width = run_of("0123456789");
    std::string precision;
    if (at_ < text_.size() && text_[at_] == '.') {
      ++at_;
      precision = '.' + run_of("0123456789");
    }
    if (at_ >= text_.size()) fail("incomplete format");
    const char type = text_[at_++];
    if (type == '%') {
      out_ += '%';
      return;
    }
    if (!chosen) value = next();
    const std::string spec = '%' + flags + width + precision;
    budget_.bytes(16384);  // upper bound for four digits of width and of precision
    try {
      out_ += one(spec, type, value);
    } catch (const fmt::format_error&) {
      fail("unsupported format " + spec + type);
    }
  }
  std::string one(const std::string& spec, char type, const Value& value) {
    static constexpr std::string_view kReal = "eEfFgG", kWhole = "diuxXo";
    require_defined(value);
    if (type == 's' || type == 'r')
      return fmt::sprintf(spec + 's',
                          type == 's' ? to_text(value, budget_) : to_repr(value, budget_));
    if (!value.is_number() ||
        (kReal.find(type) == std::string_view::npos && kWhole.find(type) == std::string_view::npos))
      fail(fmt::format("%{} with a value of type {}", type, value.type_name()));
    if (kReal.find(type) != std::string_view::npos)
      return fmt::sprintf(spec + type, value.as_real());
    const double whole = std::trunc(value.as_real());
    if (!(std::abs(whole) < 9.0e18)) fail("an integer beyond 64 bits");
    const auto number =
        value.is_real() ? static_cast<long long>(whole) : static_cast<long long>(value.as_int());
    const bool decimal = type == 'd' || type == 'i' || type == 'u';
    if (!decimal && number < 0) fail("a negative number in hexadecimal or octal");
    return fmt::sprintf(spec + "ll" + (decimal ? 'd' : type), number);
  }

  const std::string& text_;
  const Value& values_;
  Budget& budget_;
  std::string out_;
  std::size_t at_ = 0, used_ = 0;
};

}  // namespace

std::string format_percent(const std::string& text, const Value& values, Budget& budget) {
  return PercentFormat(text, values, budget).run();
}

Value arithmetic(std::string_view name, const Value& left, const Value& right, Budget& budget) {
  require_defined(left);
  if (name == "%" && left.is_text())
    return Value::text(format_percent(left.as_text(), right, budget), budget);
  require_defined(right);
  if (left.is_number() && right.is_number()) {
    if (left.is_integral() && right.is_integral())
      return of_integers(name, left.as_int(), right.as_int());
    return of_reals(name, left.as_real(), right.as_real());
  }
  if (name == "+" && left.is_text() && right.is_text()) {
    budget.bytes(left.as_text().size());
    return Value::text(left.as_text() + right.as_text(), budget);
  }
  if (name == "+" && left.is_sequence() && right.is_sequence() &&
      left.is_tuple() == right.is_tuple()) {
    std::vector<Value> items = left.items();
    items.insert(items.end(), right.items().begin(), right.items().end());
    return Value::list(std::move(items), budget, left.is_tuple());
  }
  if (name == "*" && right.is_integral() && (left.is_text() || left.is_sequence()))
    return repeat(left, right.as_int(), budget);
  if (name == "*" && left.is_integral() && (right.is_text() || right.is_sequence()))
    return repeat(right, left.as_int(), budget);
  if (name == "+" && left.is_text())
    fail(fmt::format("can only concatenate str (not \"{}\") to str", right.type_name()));
  unsupported(name, left, right);
}

std::int64_t need_int(const Value& value, std::string_view what) {
  require_defined(value);
  if (!value.is_integral()) fail(fmt::format("{} is an integer, not {}", what, value.type_name()));
  return value.as_int();
}

const std::string& need_text(const Value& value, std::string_view what) {
  require_defined(value);
  if (!value.is_text()) fail(fmt::format("{} is a str, not {}", what, value.type_name()));
  return value.as_text();
}

std::int64_t length_of(const Value& value) {
  if (value.is_undefined()) return 0;
  if (value.is_text()) return static_cast<std::int64_t>(count_characters(value.as_text()));
  if (value.is_sequence()) return static_cast<std::int64_t>(value.items().size());
  if (value.is_dict()) return static_cast<std::int64_t>(value.members().size());
  fail(fmt::format("object of type '{}' has no len()", value.type_name()));
}

}  // namespace tessera::text::chat
