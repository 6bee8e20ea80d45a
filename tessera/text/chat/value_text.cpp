// SPDX-License-Identifier: Apache-2.0
// str(), repr() and json.dumps().
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include <fmt/format.h>

#include "tessera/text/chat/python_text.h"
#include "tessera/text/chat/value.h"

namespace tessera::text::chat {
namespace {

std::string repr_of_text(const std::string& text) {
  const bool doubled = text.find('\'') != std::string::npos && text.find('"') == std::string::npos;
  const char quote = doubled ? '"' : '\'';
  std::string out(1, quote);
  for (const std::string_view character : characters(text)) {
    const std::int32_t code = code_point(character);
    if (code == quote || code == '\\') {
      out += '\\';
      out += character;
    } else if (code == '\n') {
      out += "\\n";
    } else if (code == '\r') {
      out += "\\r";
    } else if (code == '\t') {
      out += "\\t";
    } else if (code >= 0 && is_printable(code)) {
      out += character;
    } else if (code < 0x100) {
      out += fmt::format("\\x{:02x}", static_cast<unsigned>(code) & 0xFFU);
    } else {
      out += code < 0x10000 ? fmt::format("\\u{:04x}", code) : fmt::format("\\U{:08x}", code);
    }
  }
  return out + quote;
}

std::string json_text(const std::string& text, bool ascii) {
  std::string out = "\"";
  for (const std::string_view character : characters(text)) {
    const std::int32_t code = code_point(character);
    switch (code) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\b':
        out += "\\b";
        break;
      case '\f':
        out += "\\f";
        break;
      default:
        if (code >= 0x10000 && ascii) {
          const auto rest = static_cast<unsigned>(code) - 0x10000U;
          out +=
              fmt::format("\\u{:04x}\\u{:04x}", 0xD800U + (rest >> 10U), 0xDC00U + (rest & 0x3FFU));
        } else if ((code >= 0 && code < 0x20) || (ascii && code > 0x7E)) {
          out += fmt::format("\\u{:04x}", code);
        } else {
          out += character;
        }
    }
  }
  return out + "\"";
}

class JsonWriter {
 public:
  JsonWriter(const JsonStyle& style, Budget& budget) : style_(style), budget_(budget) {}

  void write(const Value& value, int level) {
    budget_.step();
    if (value.is_none()) {
      out_ += "null";
    } else if (value.is_bool()) {
      out_ += value.as_bool() ? "true" : "false";
    } else if (value.is_int()) {
      out_ += std::to_string(value.as_int());
    } else if (value.is_real()) {
      out_ += number(value.as_real());
    } else if (value.is_text()) {
      append(json_text(value.as_text(), style_.ensure_ascii));
    } else if (value.is_sequence()) {
      list(value, level);
    } else if (value.is_dict()) {
      dict(value, level);
    } else {
      fail("Object of type " + std::string(value.type_name()) + " is not JSON serializable");
    }
  }
  std::string take() { return std::move(out_); }

 private:
  void append(const std::string& text) {
    budget_.bytes(text.size());
    out_ += text;
  }
  static std::string number(double value) {
    if (std::isnan(value)) return "NaN";
    if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
    return repr_of_double(value);
  }
  void line(int level) {
    if (style_.indent < 0) return;
    append("\n" +
           std::string(static_cast<std::size_t>(style_.indent) * static_cast<std::size_t>(level),
                       ' '));
  }
  void list(const Value& value, int level) {
    if (value.items().empty()) {
      out_ += "[]";
      return;
    }
    out_ += '[';
    bool first = true;
    for (const Value& item : value.items()) {
      if (!std::exchange(first, false)) append(style_.item_separator);
      line(level + 1);
      write(item, level + 1);
    }
    line(level);
    out_ += ']';
  }
  std::string key(const Value& value) {
    if (value.is_text()) return value.as_text();
    if (value.is_none()) return "null";
    if (value.is_bool()) return value.as_bool() ? "true" : "false";
    if (value.is_int()) return std::to_string(value.as_int());
    if (value.is_real()) return number(value.as_real());
    fail("keys must be str, int, float, bool or None, not " + std::string(value.type_name()));
  }
  void dict(const Value& value, int level) {
    auto members = value.members();
    budget_.bytes(members.size() * 2 * sizeof(Value));
    if (members.empty()) {
      out_ += "{}";
      return;
    }
    if (style_.sort_keys) {
      std::stable_sort(members.begin(), members.end(), [&](const auto& a, const auto& b) {
        return less(a.first, b.first, budget_);
      });
    }
    out_ += '{';
    bool first = true;
    for (const auto& [name, member] : members) {
      if (!std::exchange(first, false)) append(style_.item_separator);
      line(level + 1);
      append(json_text(key(name), style_.ensure_ascii));
      append(style_.key_separator);
      write(member, level + 1);
    }
    line(level);
    out_ += '}';
  }

  const JsonStyle& style_;
  Budget& budget_;
  std::string out_;
};

}  // namespace

std::string repr_of_double(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  std::array<char, 64> buffer{};
  const auto end = std::to_chars(
      buffer.data(), buffer.data() + buffer.size(), value, std::chars_format::scientific);
  const std::string shortest(buffer.data(), end.ptr);
  const std::size_t mark = shortest.find('e');
  const int exponent = std::stoi(shortest.substr(mark + 1));
  if (exponent < -4 || exponent >= 16) {
    return shortest.substr(0, mark) +
           fmt::format("e{}{:02d}", exponent < 0 ? '-' : '+', std::abs(exponent));
  }
  const auto fixed =
      std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, std::chars_format::fixed);
  std::string out(buffer.data(), fixed.ptr);
  return out.find('.') == std::string::npos ? out + ".0" : out;
}

std::string to_repr(const Value& value, Budget& budget) {
  budget.step();
  std::string out;
  if (value.is_text()) {
    out = repr_of_text(value.as_text());
  } else if (value.is_undefined()) {
    out = "Undefined";
  } else if (value.is_sequence()) {
    out = value.is_tuple() ? "(" : "[";
    for (const Value& item : value.items()) {
      if (out.size() > 1) out += ", ";
      out += to_repr(item, budget);
    }
    if (value.is_tuple() && value.items().size() == 1) out += ',';
    out += value.is_tuple() ? ")" : "]";
  } else if (value.is_dict()) {
    out = "{";
    for (const auto& [key, member] : value.members()) {
      if (out.size() > 1) out += ", ";
      out += to_repr(key, budget) + ": " + to_repr(member, budget);
    }
    out += "}";
  } else {
    out = to_text(value, budget);
  }
  budget.bytes(out.size());
  return out;
}

std::string to_text(const Value& value, Budget& budget) {
  if (value.is_text()) {
    budget.bytes(value.as_text().size());
    return value.as_text();
  }
  if (value.is_undefined()) return "";
  if (value.is_none()) return "None";
  if (value.is_bool()) return value.as_bool() ? "True" : "False";
  if (value.is_int()) return std::to_string(value.as_int());
  if (value.is_real()) return repr_of_double(value.as_real());
  if (value.is_object()) return "<" + std::string(value.type_name()) + ">";
  return to_repr(value, budget);
}

std::string to_json(const Value& value, const JsonStyle& style, Budget& budget) {
  require_defined(value);
  JsonWriter writer(style, budget);
  writer.write(value, 0);
  return writer.take();
}

}  // namespace tessera::text::chat
