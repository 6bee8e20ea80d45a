// SPDX-License-Identifier: Apache-2.0
// Filters that return text or a number.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include <fmt/format.h>

#include "tessera/text/chat/interpreter.h"
#include "tessera/text/chat/python_text.h"

namespace tessera::text::chat {
namespace {

using Of = Interpreter;

/// The text of the value; charges for work on all of it.
std::string text_of(Of& in, const Value& value) {
  std::string out = to_text(value, in.budget());
  in.budget().bytes(out.size() * 4);
  return out;
}

Value trim(Of& in, const Value& value, const Arguments& arguments) {
  const auto bound = arguments.bind("trim", {"chars"});
  const std::string text = text_of(in, value);
  if (bound[0] == nullptr || bound[0]->is_none())
    return in.text(std::string(strip_right(strip_left(text))));
  const std::string& chars = need_text(*bound[0], "the argument of trim");
  in.budget().bytes(text.size() * chars.size());
  return in.text(std::string(strip_right(strip_left(text, chars), chars)));
}

Value upper_case(Of& in, const Value& value, const Arguments& arguments) {
  arguments.expect_none("upper");
  return in.text(upper(text_of(in, value)));
}
Value lower_case(Of& in, const Value& value, const Arguments& arguments) {
  arguments.expect_none("lower");
  return in.text(lower(text_of(in, value)));
}
Value capitalized(Of& in, const Value& value, const Arguments& arguments) {
  arguments.expect_none("capitalize");
  return in.text(capitalize(text_of(in, value)));
}
Value titled(Of& in, const Value& value, const Arguments& arguments) {
  arguments.expect_none("title");
  return in.text(jinja_title(text_of(in, value)));
}
Value as_string(Of& in, const Value& value, const Arguments& arguments) {
  arguments.expect_none("string");
  return value.is_text() ? value : in.text(to_text(value, in.budget()));
}

Value escaped(Of& in, const Value& value, const Arguments& arguments) {
  arguments.expect_none("escape");
  std::string out;
  for (const char c : text_of(in, value)) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&#34;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return in.text(std::move(out));
}

Value replaced(Of& in, const Value& value, const Arguments& arguments) {
  const Value text = in.text(to_text(value, in.budget()));
  Arguments all = arguments;
  for (Value& argument : all.positional) {
    if (!argument.is_integral() && !argument.is_none())
      argument = in.text(to_text(argument, in.budget()));
  }
  return in.call(in.attribute(text, "replace"), all);
}

Value centered(Of& in, const Value& value, const Arguments& arguments) {
  const auto bound = arguments.bind("center", {"width"});
  const Value width = bound[0] == nullptr ? Value::integer(80) : *bound[0];
  return in.call(in.attribute(in.text(to_text(value, in.budget())), "center"), {{width}, {}});
}

Value indented(Of& in, const Value& value, const Arguments& arguments) {
  const auto bound = arguments.bind("indent", {"width", "first", "blank"});
  std::string pad;
  if (bound[0] != nullptr && bound[0]->is_text()) {
    pad = bound[0]->as_text();
  } else {
    const std::int64_t width = bound[0] == nullptr ? 4 : need_int(*bound[0], "an indentation");
    if (width > 1024) fail("an indentation beyond 1024");
    pad.assign(static_cast<std::size_t>(std::max<std::int64_t>(width, 0)), ' ');
  }
  const bool blank = bound[2] != nullptr && bound[2]->truth();
  std::string out;
  const auto lines = split_lines(text_of(in, value) + "\n", false);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    in.budget().bytes(pad.size() + 1);
    if (i > 0) out += '\n';
    const bool first = i == 0 && (bound[1] == nullptr || !bound[1]->truth());
    if (!first && (blank || i == 0 || !lines[i].empty())) out += pad;
    out += lines[i];
  }
  return in.text(std::move(out));
}

Value formatted(Of& in, const Value& value, const Arguments& arguments) {
  if (!arguments.positional.empty() && !arguments.named.empty())
    fail("can't handle positional and keyword arguments at the same time");
  Value values = in.list(arguments.positional, true);
  if (!arguments.named.empty()) {
    std::vector<std::pair<Value, Value>> members;
    for (const auto& [name, argument] : arguments.named)
      members.emplace_back(in.text(name), argument);
    values = Value::dict(std::move(members), in.budget());
  }
  return in.text(format_percent(to_text(value, in.budget()), values, in.budget()));
}

Value as_json(Of& in, const Value& value, const Arguments& arguments) {
  const auto bound =
      arguments.bind("tojson", {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ensure_ascii = bound[0] != nullptr && bound[0]->truth();
  style.sort_keys = bound[3] != nullptr && bound[3]->truth();
  if (bound[1] != nullptr && !bound[1]->is_none()) {
    const std::int64_t indent = need_int(*bound[1], "the indentation of tojson");
    if (indent > 64) fail("an indentation of tojson beyond 64");
    style.indent = static_cast<int>(std::max<std::int64_t>(indent, 0));
    style.item_separator = ",";
  }
  if (bound[2] != nullptr && !bound[2]->is_none()) {
    if (!bound[2]->is_sequence() || bound[2]->items().size() != 2)
      fail("the separators of tojson are two texts");
    style.item_separator = need_text(bound[2]->items()[0], "a separator");
    style.key_separator = need_text(bound[2]->items()[1], "a separator");
  }
  return in.text(to_json(value, style, in.budget()));
}

Value word_count(Of& in, const Value& value, const Arguments& arguments) {
  arguments.expect_none("wordcount");
  std::int64_t count = 0;
  bool inside = false;
  for (const std::string_view letter : characters(text_of(in, value))) {
    const std::int32_t code = code_point(letter);
    const bool part = is_alpha(code) || is_decimal(code) || code == '_';
    if (part && !inside) ++count;
    inside = part;
  }
  return Value::integer(count);
}

std::optional<double> read_real(const std::string& text) {
  const std::string_view digits = strip_right(strip_left(text));
  double out = 0.0;
  const char* begin = digits.data() + (!digits.empty() && digits[0] == '+' ? 1 : 0);
  const auto read = std::from_chars(begin, digits.data() + digits.size(), out);
  if (digits.empty() || read.ec != std::errc() || read.ptr != digits.data() + digits.size())
    return std::nullopt;
  return out;
}

Value whole(double value, const Value& otherwise) {
  return std::abs(value) < 9.2e18 ? Value::integer(static_cast<std::int64_t>(std::trunc(value)))
                                  : otherwise;
}

Value as_int(Of& in, const Value& value, const Arguments& arguments) {
  const auto bound = arguments.bind("int", {"default", "base"});
  const Value otherwise = bound[0] == nullptr ? Value::integer(0) : *bound[0];
  require_defined(value);
  if (value.is_real()) return whole(value.as_real(), otherwise);
  if (value.is_integral()) return Value::integer(value.as_int());
  if (!value.is_text()) return otherwise;
  const std::int64_t base = bound[1] == nullptr ? 10 : need_int(*bound[1], "a base");
  if (base < 2 || base > 36) fail("a base of 2 to 36 is needed");
  const std::string text = text_of(in, value);
  std::string_view digits = strip_right(strip_left(text));
  if (!digits.empty() && digits[0] == '+') digits.remove_prefix(1);
  std::int64_t out = 0;
  const auto read =
      std::from_chars(digits.data(), digits.data() + digits.size(), out, static_cast<int>(base));
  if (!digits.empty() && read.ec == std::errc() && read.ptr == digits.data() + digits.size())
    return Value::integer(out);
  const auto real = base == 10 ? read_real(text) : std::nullopt;
  return real ? whole(*real, otherwise) : otherwise;
}

Value as_float(Of& in, const Value& value, const Arguments& arguments) {
  const auto bound = arguments.bind("float", {"default"});
  const Value otherwise = bound[0] == nullptr ? Value::real(0.0) : *bound[0];
  require_defined(value);
  if (value.is_number()) return Value::real(value.as_real());
  if (!value.is_text()) return otherwise;
  const auto real = read_real(text_of(in, value));
  return real ? Value::real(*real) : otherwise;
}

Value absolute(Of& in, const Value& value, const Arguments& arguments) {
  arguments.expect_none("abs");
  require_defined(value);
  if (value.is_real()) return Value::real(std::abs(value.as_real()));
  const std::int64_t number = need_int(value, "the value of abs");
  return number < 0 ? arithmetic("-", Value::integer(0), Value::integer(number), in.budget())
                    : Value::integer(number);
}

Value rounded(Of& /*in*/, const Value& value, const Arguments& arguments) {
  const auto bound = arguments.bind("round", {"precision", "method"});
  const std::int64_t places = bound[0] == nullptr ? 0 : need_int(*bound[0], "a precision");
  const std::string method = bound[1] == nullptr ? "common" : need_text(*bound[1], "a method");
  require_defined(value);
  if (!value.is_number()) fail("round needs a number");
  if (places < 0 || places > 300) fail("a precision of 0 to 300 is needed");
  const double number = value.as_real();
  if (method == "common") {
    if (value.is_integral()) return Value::integer(value.as_int());
    if (!std::isfinite(number)) return value;
    return Value::real(std::stod(fmt::format("{:.{}f}", number, places)));
  }
  if (method != "ceil" && method != "floor") fail("method must be common, ceil or floor");
  const double scale = std::pow(10.0, static_cast<double>(places));
  return Value::real((method == "ceil" ? std::ceil(number * scale) : std::floor(number * scale)) /
                     scale);
}

}  // namespace

const FilterTable& text_filters() {
  static const FilterTable kTable = {
      {"trim", trim},        {"upper", upper_case},
      {"lower", lower_case}, {"capitalize", capitalized},
      {"title", titled},     {"string", as_string},
      {"safe", as_string},   {"escape", escaped},
      {"e", escaped},        {"forceescape", escaped},
      {"replace", replaced}, {"center", centered},
      {"indent", indented},  {"format", formatted},
      {"tojson", as_json},   {"wordcount", word_count},
      {"int", as_int},       {"float", as_float},
      {"abs", absolute},     {"round", rounded},
  };
  return kTable;
}

}  // namespace tessera::text::chat
