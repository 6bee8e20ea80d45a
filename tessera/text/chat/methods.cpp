// SPDX-License-Identifier: Apache-2.0
// Methods of text, lists and dictionaries. Methods that would modify a value are refused.
#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "tessera/text/chat/interpreter.h"
#include "tessera/text/chat/python_text.h"

namespace tessera::text::chat {
namespace {

using Of = Interpreter;
using Entry = std::pair<std::string_view, Method::Body>;

const std::string& of_text(const Value& self) {
  return self.as_text();
}

/// Operations on a text are charged in proportion to its length.
void charge(Of& in, const Value& self, std::size_t times = 1) {
  in.budget().bytes(self.as_text().size() * times);
}

std::int64_t int_or(const Value* value, std::int64_t otherwise) {
  return value == nullptr || value->is_none() ? otherwise : need_int(*value, "an argument");
}

Value strip(Of& in, const Value& self, const Arguments& arguments, bool left, bool right) {
  const auto bound = arguments.bind("strip", {"chars"});
  std::string_view text = of_text(self);
  if (bound[0] == nullptr || bound[0]->is_none()) {
    charge(in, self);
    if (left) text = strip_left(text);
    if (right) text = strip_right(text);
  } else {
    const std::string& chars = need_text(*bound[0], "the argument of strip");
    charge(in, self, 1 + chars.size());
    if (left) text = strip_left(text, chars);
    if (right) text = strip_right(text, chars);
  }
  return in.text(std::string(text));
}

Value split(Of& in, const Value& self, const Arguments& arguments, bool from_right) {
  const auto bound = arguments.bind("split", {"sep", "maxsplit"});
  const std::int64_t most = int_or(bound[1], -1);
  charge(in, self, 8);
  std::vector<std::string> parts;
  if (bound[0] == nullptr || bound[0]->is_none()) {
    in.budget().step(from_right ? static_cast<std::int64_t>(of_text(self).size()) * 4 : 1);
    if (from_right && of_text(self).size() > 100'000)
      fail("rsplit() of a text beyond 100000 bytes");
    parts = split_words(of_text(self), most, from_right);
  } else {
    const std::string& separator = need_text(*bound[0], "a separator");
    if (separator.empty()) fail("empty separator");
    parts = split_by(of_text(self), separator, most, from_right);
  }
  std::vector<Value> out;
  for (std::string& part : parts)
    out.push_back(in.text(std::move(part)));
  return in.list(std::move(out));
}

/// True if the text begins (or ends) with one text, or with any text of a tuple.
Value affix(Of& in, const Value& self, const Arguments& arguments, bool at_start) {
  const auto bound = arguments.bind(at_start ? "startswith" : "endswith", {"prefix"});
  if (bound[0] == nullptr) fail("startswith() and endswith() need a text");
  const auto has = [&](const Value& part) {
    const std::string &text = of_text(self), &piece = need_text(part, "an argument of startswith");
    in.budget().step();
    if (piece.size() > text.size()) return false;
    return text.compare(at_start ? 0 : text.size() - piece.size(), piece.size(), piece) == 0;
  };
  if (!bound[0]->is_tuple()) return Value::boolean(has(*bound[0]));
  return Value::boolean(std::any_of(bound[0]->items().begin(), bound[0]->items().end(), has));
}

/// find and index, in code points.
Value find(Of& in, const Value& self, const Arguments& arguments, bool from_right, bool must) {
  const auto bound = arguments.bind("find", {"sub"});
  if (bound[0] == nullptr) fail("find() needs a text");
  charge(in, self);
  const std::string &text = of_text(self), &part = need_text(*bound[0], "what is looked for");
  const std::size_t at = from_right ? text.rfind(part) : text.find(part);
  if (at == std::string::npos) {
    if (must) fail("substring not found");
    return Value::integer(-1);
  }
  return Value::integer(static_cast<std::int64_t>(count_characters(text.substr(0, at))));
}

Value partition(Of& in, const Value& self, const Arguments& arguments, bool from_right) {
  const auto bound = arguments.bind("partition", {"sep"});
  if (bound[0] == nullptr) fail("partition() needs a separator");
  const std::string &text = of_text(self), &separator = need_text(*bound[0], "a separator");
  if (separator.empty()) fail("empty separator");
  charge(in, self);
  const std::size_t at = from_right ? text.rfind(separator) : text.find(separator);
  std::array<std::string, 3> parts;
  if (at == std::string::npos) {
    parts[from_right ? 2 : 0] = text;
  } else {
    parts = {text.substr(0, at), separator, text.substr(at + separator.size())};
  }
  std::vector<Value> out;
  for (const std::string& part : parts)
    out.push_back(in.text(part));
  return in.list(std::move(out), true);
}

enum class Side : std::uint8_t { Left, Right, Both };
Value justify(Of& in, const Value& self, const Arguments& arguments, Side pad) {
  const auto bound = arguments.bind("justify", {"width", "fillchar"});
  if (bound[0] == nullptr) fail("a width is missing");
  const std::int64_t width = need_int(*bound[0], "a width");
  const std::string fill = bound[1] == nullptr ? " " : need_text(*bound[1], "a fill character");
  if (count_characters(fill) != 1) fail("the fill character must be exactly one character long");
  const std::int64_t missing = std::max<std::int64_t>(0, width - length_of(self));
  if (missing > in.budget().limits().bytes) fail("a width is too large");
  in.budget().bytes(static_cast<std::size_t>(missing) * fill.size());
  // In str.center of odd width, CPython puts the additional space on the left.
  std::int64_t left = pad == Side::Left ? missing : 0;
  if (pad == Side::Both) left = missing / 2 + (missing & width & 1);
  std::string out;
  for (std::int64_t i = 0; i < missing + 1; ++i) {
    if (i == left) out += of_text(self);
    if (i < missing) out += fill;
  }
  return in.text(std::move(out));
}

template <class F>
Value all_characters(Of& in, const Value& self, const Arguments& arguments, F&& holds) {
  arguments.expect_none("a test of a text");
  charge(in, self);
  const auto letters = characters(of_text(self));
  return Value::boolean(!letters.empty() &&
                        std::all_of(letters.begin(), letters.end(), [&](std::string_view letter) {
                          return holds(code_point(letter));
                        }));
}

/// isupper and islower: there are cased characters, and all of them have this case.
Value has_case(Of& in, const Value& self, const Arguments& arguments, bool upper) {
  arguments.expect_none("isupper");
  charge(in, self);
  bool some = false;
  for (const std::string_view letter : characters(of_text(self))) {
    const std::int32_t code = code_point(letter);
    if (!is_cased(code)) continue;
    if (upper ? !is_upper(code) : !is_lower(code)) return Value::boolean(false);
    some = true;
  }
  return Value::boolean(some);
}

Value changed(Of& in,
              const Value& self,
              const Arguments& arguments,
              std::string (*change)(std::string_view)) {
  arguments.expect_none("a method of a text");
  charge(in, self, 4);
  return in.text(change(of_text(self)));
}

Value replaced(Of& in, const Value& self, const Arguments& arguments) {
  const auto bound = arguments.bind("replace", {"old", "new", "count"});
  if (bound[0] == nullptr || bound[1] == nullptr) fail("replace() needs two texts");
  const std::string &from = need_text(*bound[0], "an argument of replace"),
                    &to = need_text(*bound[1], "an argument of replace");
  const std::size_t places = of_text(self).size() / std::max<std::size_t>(1, from.size()) + 1;
  charge(in, self, 2);
  // The worst case is charged only if it is large, because few texts consist of `from` alone.
  const bool large = to.size() * places > (1UL << 22);
  if (large) in.budget().bytes(std::min<std::size_t>(to.size() * places, 1ULL << 40));
  return in.text(replace(of_text(self), from, to, int_or(bound[2], -1)));
}

Value joined(Of& in, const Value& self, const Arguments& arguments) {
  const auto bound = arguments.bind("join", {"iterable"});
  if (bound[0] == nullptr) fail("join() needs what to join");
  std::string out;
  bool first = true;
  for (const Value& part : iterate(*bound[0], in.budget())) {
    in.budget().bytes(of_text(self).size());
    if (!std::exchange(first, false)) out += of_text(self);
    out += need_text(part, "a part of join");
  }
  return in.text(std::move(out));
}

/// str.format with {}, {0} and {name}.
Value formatted(Of& in, const Value& self, const Arguments& arguments) {
  const std::string& text = of_text(self);
  std::string out;
  std::size_t next = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if ((c == '{' || c == '}') && i + 1 < text.size() && text[i + 1] == c) {
      out += c;
      ++i;
      continue;
    }
    if (c == '}') fail("Single '}' encountered in format string");
    if (c != '{') {
      out += c;
      continue;
    }
    const std::size_t close = text.find('}', i);
    if (close == std::string::npos) fail("Single '{' encountered in format string");
    const std::string field = text.substr(i + 1, close - i - 1);
    const Value* found = nullptr;
    if (field.find_first_not_of("0123456789") == std::string::npos && field.size() < 6) {
      const std::size_t at = field.empty() ? next++ : static_cast<std::size_t>(std::stoi(field));
      if (at < arguments.positional.size()) found = &arguments.positional[at];
    }
    for (const auto& [name, value] : arguments.named) {
      if (name == field) found = &value;
    }
    if (found == nullptr)
      fail("format() has no value for {" + field + "}, or a form of it that is not supported");
    out += to_text(*found, in.budget());
    i = close;
  }
  return in.text(std::move(out));
}

Value lines(Of& in, const Value& self, const Arguments& arguments) {
  const auto bound = arguments.bind("splitlines", {"keepends"});
  charge(in, self, 4);
  std::vector<Value> out;
  for (std::string& line : split_lines(of_text(self), bound[0] != nullptr && bound[0]->truth()))
    out.push_back(in.text(std::move(line)));
  return in.list(std::move(out));
}

Value counted(Of& in, const Value& self, const Arguments& arguments) {
  const auto bound = arguments.bind("count", {"value"});
  if (bound[0] == nullptr) fail("count() needs a value");
  if (self.is_text()) {
    const std::string& part = need_text(*bound[0], "what is counted");
    charge(in, self, 4);
    if (part.empty()) return Value::integer(length_of(self) + 1);
    return Value::integer(
        static_cast<std::int64_t>(split_by(of_text(self), part, -1, false).size()) - 1);
  }
  std::int64_t count = 0;
  for (const Value& item : self.items())
    count += equal(item, *bound[0], in.budget()) ? 1 : 0;
  return Value::integer(count);
}

Value zero_filled(Of& in, const Value& self, const Arguments& arguments) {
  const auto bound = arguments.bind("zfill", {"width"});
  if (bound[0] == nullptr) fail("zfill() needs a width");
  const std::int64_t missing = need_int(*bound[0], "a width") - length_of(self);
  if (missing > in.budget().limits().bytes) fail("a width is too large");
  std::string out = of_text(self);
  in.budget().bytes(static_cast<std::size_t>(std::max<std::int64_t>(missing, 0)));
  const bool sign = !out.empty() && (out[0] == '-' || out[0] == '+');
  if (missing > 0) out.insert(sign ? 1 : 0, static_cast<std::size_t>(missing), '0');
  return in.text(std::move(out));
}

Value without_affix(Of& in, const Value& self, const Arguments& arguments, bool at_start) {
  const auto bound = arguments.bind("removeprefix", {"prefix"});
  if (bound[0] == nullptr) fail("removeprefix() needs a text");
  const std::string &text = of_text(self), &part = need_text(*bound[0], "an argument");
  if (part.size() > text.size() ||
      text.compare(at_start ? 0 : text.size() - part.size(), part.size(), part) != 0)
    return self;
  return in.text(at_start ? text.substr(part.size()) : text.substr(0, text.size() - part.size()));
}

Value index_in_list(Of& in, const Value& self, const Arguments& arguments) {
  const auto bound = arguments.bind("index", {"value"});
  if (bound[0] == nullptr) fail("index() needs a value");
  for (std::size_t i = 0; i < self.items().size(); ++i) {
    if (equal(self.items()[i], *bound[0], in.budget()))
      return Value::integer(static_cast<std::int64_t>(i));
  }
  fail("the value is not in the list");
}

Value get_of_dict(Of& in, const Value& self, const Arguments& arguments) {
  const auto bound = arguments.bind("get", {"key", "default"});
  if (bound[0] == nullptr) fail("get() needs a key");
  if (const Value* found = self.find(*bound[0], in.budget())) return *found;
  return bound[1] == nullptr ? Value::none() : *bound[1];
}

Value parts_of_dict(Of& in, const Value& self, const Arguments& arguments, bool keys, bool values) {
  arguments.expect_none("a method of a dictionary");
  std::vector<Value> out;
  for (const auto& [key, value] : self.members()) {
    if (keys && values) {
      out.push_back(in.list({key, value}, true));
    } else {
      out.push_back(keys ? key : value);
    }
  }
  return in.list(std::move(out));
}

Value refuse(Of& /*in*/, const Value& self, const Arguments& /*arguments*/) {
  fail(fmt::format("a template may not change a {}; use a namespace()", self.type_name()));
}
Value copy(Of& /*in*/, const Value& self, const Arguments& /*arguments*/) {
  return self;
}

// NOLINTNEXTLINE(cppcoreguidelines-macro-usage): each row is one method with the same parameters
#define TESSERA_METHOD(name, call)                                                    \
  Entry {                                                                             \
    name, [](Of& in, const Value& self, const Arguments& a) -> Value { return call; } \
  }

const std::vector<Entry>& text_methods() {
  static const std::vector<Entry> kTable = {
      TESSERA_METHOD("strip", strip(in, self, a, true, true)),
      TESSERA_METHOD("lstrip", strip(in, self, a, true, false)),
      TESSERA_METHOD("rstrip", strip(in, self, a, false, true)),
      TESSERA_METHOD("split", split(in, self, a, false)),
      TESSERA_METHOD("rsplit", split(in, self, a, true)),
      TESSERA_METHOD("startswith", affix(in, self, a, true)),
      TESSERA_METHOD("endswith", affix(in, self, a, false)),
      TESSERA_METHOD("find", find(in, self, a, false, false)),
      TESSERA_METHOD("rfind", find(in, self, a, true, false)),
      TESSERA_METHOD("index", find(in, self, a, false, true)),
      TESSERA_METHOD("rindex", find(in, self, a, true, true)),
      TESSERA_METHOD("partition", partition(in, self, a, false)),
      TESSERA_METHOD("rpartition", partition(in, self, a, true)),
      TESSERA_METHOD("ljust", justify(in, self, a, Side::Right)),
      TESSERA_METHOD("rjust", justify(in, self, a, Side::Left)),
      TESSERA_METHOD("center", justify(in, self, a, Side::Both)),
      TESSERA_METHOD("isspace", all_characters(in, self, a, is_space)),
      TESSERA_METHOD("isalpha", all_characters(in, self, a, is_alpha)),
      TESSERA_METHOD("isdigit", all_characters(in, self, a, is_decimal)),
      TESSERA_METHOD("isdecimal", all_characters(in, self, a, is_decimal)),
      TESSERA_METHOD("isnumeric", all_characters(in, self, a, is_decimal)),
      TESSERA_METHOD(
          "isalnum",
          all_characters(
              in, self, a, [](std::int32_t code) { return is_alpha(code) || is_decimal(code); })),
      TESSERA_METHOD("isupper", has_case(in, self, a, true)),
      TESSERA_METHOD("islower", has_case(in, self, a, false)),
      TESSERA_METHOD("upper", changed(in, self, a, upper)),
      TESSERA_METHOD("lower", changed(in, self, a, lower)),
      TESSERA_METHOD("casefold", changed(in, self, a, lower)),
      TESSERA_METHOD("capitalize", changed(in, self, a, capitalize)),
      TESSERA_METHOD("title", changed(in, self, a, title)),
      TESSERA_METHOD("swapcase", changed(in, self, a, swapcase)),
      TESSERA_METHOD("removeprefix", without_affix(in, self, a, true)),
      TESSERA_METHOD("removesuffix", without_affix(in, self, a, false)),
      {"replace", replaced},
      {"join", joined},
      {"format", formatted},
      {"splitlines", lines},
      {"count", counted},
      {"zfill", zero_filled},
  };
  return kTable;
}

const std::vector<Entry>& list_methods() {
  static const std::vector<Entry> kTable = {
      {"index", index_in_list},
      {"count", counted},
      {"copy", copy},
      {"append", refuse},
      {"extend", refuse},
      {"insert", refuse},
      {"pop", refuse},
      {"remove", refuse},
      {"sort", refuse},
      {"reverse", refuse},
      {"clear", refuse},
  };
  return kTable;
}

const std::vector<Entry>& dict_methods() {
  static const std::vector<Entry> kTable = {
      TESSERA_METHOD("items", parts_of_dict(in, self, a, true, true)),
      TESSERA_METHOD("keys", parts_of_dict(in, self, a, true, false)),
      TESSERA_METHOD("values", parts_of_dict(in, self, a, false, true)),
      {"get", get_of_dict},
      {"copy", copy},
      {"pop", refuse},
      {"popitem", refuse},
      {"update", refuse},
      {"setdefault", refuse},
      {"clear", refuse},
  };
  return kTable;
}
#undef TESSERA_METHOD

}  // namespace

Method::Body find_method(const Value& of, std::string_view name) {
  const std::vector<Entry>* table = nullptr;
  if (of.is_text()) table = &text_methods();
  if (of.is_sequence()) table = &list_methods();
  if (of.is_dict()) table = &dict_methods();
  if (table == nullptr) return nullptr;
  const auto found = std::find_if(
      table->begin(), table->end(), [&](const Entry& entry) { return entry.first == name; });
  return found == table->end() ? nullptr : found->second;
}

}  // namespace tessera::text::chat
