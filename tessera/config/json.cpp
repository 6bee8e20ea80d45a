// SPDX-License-Identifier: Apache-2.0
#include "tessera/config/json.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "tessera/base/error.h"
#include "tessera/base/text.h"

namespace tessera::json {
namespace {

std::string_view words(Value::Type type) {
  switch (type) {
    case Value::Type::Null:
      return "null";
    case Value::Type::Bool:
      return "true or false";
    case Value::Type::Number:
      return "a number";
    case Value::Type::String:
      return "a string";
    case Value::Type::Array:
      return "an array";
    case Value::Type::Object:
      return "an object";
  }
  return "nothing";
}

void append_string(std::string& out, const std::string& raw) {
  const bool clean = !text::find_invalid_utf8(raw);
  out += '"';
  for (const char c : clean ? raw : text::replace_invalid_utf8(raw)) {
    switch (c) {
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
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          constexpr std::string_view kDigits = "0123456789abcdef";
          out += "\\u00";
          out += kDigits[static_cast<unsigned char>(c) >> 4];
          out += kDigits[static_cast<unsigned char>(c) & 15];
        } else {
          out += c;
        }
    }
  }
  out += '"';
}

void new_line(std::string& out, int indent, int depth) {
  if (indent < 0) return;
  out += '\n';
  out.append(static_cast<std::size_t>(indent) * static_cast<std::size_t>(depth), ' ');
}

// Arrays of short items are printed on one line.
bool fits_on_a_line(const std::vector<Value>& items) {
  return items.size() <= 16 && std::none_of(items.begin(), items.end(), [](const Value& item) {
           return item.is_array() || item.is_object();
         });
}

}  // namespace

std::string Place::text() const {
  if (line == 0) return source;
  return source + ":" + std::to_string(line) + ":" + std::to_string(column);
}

Value Value::boolean(bool value) {
  Value out;
  out.type_ = Type::Bool;
  out.bool_ = value;
  return out;
}

Value Value::integer(std::int64_t value) {
  Value out;
  out.type_ = Type::Number;
  out.text_ = std::to_string(value);
  return out;
}

Value Value::number(double value) {
  Value out;
  if (!std::isfinite(value)) return out;
  out.type_ = Type::Number;
  out.text_ = text::number(value);
  return out;
}

Value Value::string(std::string value) {
  Value out;
  out.type_ = Type::String;
  out.text_ = std::move(value);
  return out;
}

Value Value::array(std::vector<Value> items) {
  Value out;
  out.type_ = Type::Array;
  out.items_ = std::move(items);
  return out;
}

Value Value::object(std::vector<Member> members) {
  Value out;
  out.type_ = Type::Object;
  out.members_ = std::move(members);
  return out;
}

std::string_view Value::type_name() const {
  return words(type_);
}

void Value::expect(Type type) const {
  if (type_ == type) return;
  const std::string at = place.text();
  throw Error(strict_ ? Error::Kind::Format : Error::Kind::Config,
              (at.empty() ? "" : at + ": ") + "expected " + std::string(words(type)) + ", found " +
                  std::string(type_name()));
}

bool Value::as_bool() const {
  expect(Type::Bool);
  return bool_;
}

double Value::as_double() const {
  expect(Type::Number);
  double out = 0.0;
  const char* const end = text_.data() + text_.size();
  const auto result = std::from_chars(text_.data(), end, out);
  // Out of range: 1e-999 becomes 0; 1e999 was rejected when it was read.
  return result.ec == std::errc() ? out : 0.0;
}

std::optional<std::int64_t> Value::as_integer() const {
  expect(Type::Number);
  std::int64_t whole = 0;
  const char* const end = text_.data() + text_.size();
  const auto result = std::from_chars(text_.data(), end, whole);
  if (result.ec == std::errc() && result.ptr == end) return whole;
  const double value = as_double();
  if (value != std::floor(value) || std::abs(value) >= 0x1p63) return std::nullopt;
  return static_cast<std::int64_t>(value);
}

const std::string& Value::as_string() const {
  expect(Type::String);
  return text_;
}

const std::vector<Value>& Value::items() const {
  expect(Type::Array);
  return items_;
}
std::vector<Value>& Value::items() {
  expect(Type::Array);
  return items_;
}
const std::vector<Value::Member>& Value::members() const {
  expect(Type::Object);
  return members_;
}
std::vector<Value::Member>& Value::members() {
  expect(Type::Object);
  return members_;
}

const Value* Value::find(std::string_view key) const {
  for (const Member& member : members_) {
    if (member.first == key) return &member.second;
  }
  return nullptr;
}
Value* Value::find(std::string_view key) {
  return const_cast<Value*>(static_cast<const Value*>(this)->find(key));
}

Value& Value::operator[](std::string_view key) {
  if (is_null()) type_ = Type::Object;
  expect(Type::Object);
  if (Value* found = find(key)) return *found;
  members_.emplace_back(std::string(key), Value());
  return members_.back().second;
}

void Value::push_back(Value item) {
  if (is_null()) type_ = Type::Array;
  expect(Type::Array);
  items_.push_back(std::move(item));
}

std::string Value::dump(int indent) const {
  std::string out;
  append_to(out, indent, 0);
  return out;
}

void Value::append_to(std::string& out, int indent, int depth) const {
  switch (type_) {
    case Type::Null:
      out += "null";
      return;
    case Type::Bool:
      out += bool_ ? "true" : "false";
      return;
    case Type::Number:
      out += text_;
      return;
    case Type::String:
      append_string(out, text_);
      return;
    case Type::Array: {
      const int inner = fits_on_a_line(items_) ? -1 : indent;
      out += '[';
      for (std::size_t i = 0; i < items_.size(); ++i) {
        if (i > 0) out += inner < 0 && indent >= 0 ? ", " : ",";
        new_line(out, inner, depth + 1);
        items_[i].append_to(out, inner, depth + 1);
      }
      if (!items_.empty()) new_line(out, inner, depth);
      out += ']';
      return;
    }
    case Type::Object: {
      out += '{';
      for (std::size_t i = 0; i < members_.size(); ++i) {
        if (i > 0) out += ',';
        new_line(out, indent, depth + 1);
        append_string(out, members_[i].first);
        out += indent < 0 ? ":" : ": ";
        members_[i].second.append_to(out, indent, depth + 1);
      }
      if (!members_.empty()) new_line(out, indent, depth);
      out += '}';
      return;
    }
  }
}

bool Value::operator==(const Value& other) const {
  if (type_ != other.type_) return false;
  switch (type_) {
    case Type::Null:
      return true;
    case Type::Bool:
      return bool_ == other.bool_;
    case Type::String:
      return text_ == other.text_;
    case Type::Array:
      return items_ == other.items_;
    case Type::Number: {
      const auto mine = as_integer(), theirs = other.as_integer();
      if (mine && theirs) return *mine == *theirs;
      return as_double() == other.as_double();
    }
    case Type::Object:
      return members_.size() == other.members_.size() &&
             std::all_of(members_.begin(), members_.end(), [&](const Member& member) {
               const Value* theirs = other.find(member.first);
               return theirs != nullptr && *theirs == member.second;
             });
  }
  return false;
}

std::string join_path(std::string_view path, std::string_view key) {
  std::string out(path);
  if (!out.empty()) out += '.';
  out += key;
  return out;
}

namespace {

void add_leaves(const std::string& path,
                const Value& value,
                std::vector<std::pair<std::string, Value>>& out) {
  for (const auto& [key, member] : value.members()) {
    const std::string at = join_path(path, key);
    if (member.is_object()) {
      add_leaves(at, member, out);
    } else {
      out.emplace_back(at, member);
    }
  }
}

}  // namespace

std::vector<std::pair<std::string, Value>> leaves(const Value& object) {
  std::vector<std::pair<std::string, Value>> out;
  if (object.is_object()) add_leaves("", object, out);
  return out;
}

}  // namespace tessera::json
