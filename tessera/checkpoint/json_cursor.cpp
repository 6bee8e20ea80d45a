// SPDX-License-Identifier: Apache-2.0
#include "tessera/checkpoint/json_cursor.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/config/json.h"

namespace tessera::checkpoint {
namespace {

void append_utf8(std::string& out, std::uint32_t code) {
  const auto put = [&out](std::uint32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0U | (code >> 6));
    put(0x80U | (code & 0x3FU));
  } else if (code < 0x10000) {
    put(0xE0U | (code >> 12));
    put(0x80U | ((code >> 6) & 0x3FU));
    put(0x80U | (code & 0x3FU));
  } else {
    put(0xF0U | (code >> 18));
    put(0x80U | ((code >> 12) & 0x3FU));
    put(0x80U | ((code >> 6) & 0x3FU));
    put(0x80U | (code & 0x3FU));
  }
}

}  // namespace

JsonCursor::JsonCursor(std::string_view text, std::string source)
    : text_(text), source_(std::move(source)) {
  if (const auto bad = text::find_invalid_utf8(text_)) {
    at_ = *bad;
    fail("invalid UTF-8");
  }
}

void JsonCursor::fail(const std::string& what) const {
  const std::string context = context_.empty() ? "" : context_ + ": ";
  throw Error(Error::Kind::Format,
              fmt::format("{}: {}{} at byte {} of its JSON", source_, context, what, at_));
}

std::string JsonCursor::shown(std::string_view name) {
  constexpr std::size_t kLongest = 200;
  if (name.size() <= kLongest) return json::Value::string(std::string(name)).dump();
  std::string head(name.substr(0, kLongest));
  head.resize(head.size() - text::incomplete_utf8_tail(head));
  return json::Value::string(head + "...").dump();
}

void JsonCursor::skip_space() {
  while (at_ < text_.size() &&
         (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t' || text_[at_] == '\r')) {
    ++at_;
  }
}

bool JsonCursor::accept(char c) {
  skip_space();
  if (at_ >= text_.size() || text_[at_] != c) return false;
  ++at_;
  return true;
}

void JsonCursor::expect(char c, const char* what) {
  if (!accept(c)) fail(fmt::format("expected {}", what));
}

std::uint32_t JsonCursor::hex4() {
  std::uint32_t value = 0;
  for (int i = 0; i < 4; ++i, ++at_) {
    const char c = at_ < text_.size() ? text_[at_] : '\0';
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                             : -1;
    if (digit < 0) fail("expected four hexadecimal digits");
    value = value * 16 + static_cast<std::uint32_t>(digit);
  }
  return value;
}

void JsonCursor::escape(std::string& out) {
  if (at_ >= text_.size()) fail("expected the end of a string");
  const char c = text_[at_++];
  static constexpr std::string_view kFrom = "\"\\/bfnrt", kTo = "\"\\/\b\f\n\r\t";
  if (const auto i = kFrom.find(c); i != std::string_view::npos) {
    out.push_back(kTo[i]);
  } else if (c == 'u') {
    std::uint32_t code = hex4();
    if (code >= 0xD800 && code < 0xDC00 && text_.substr(at_, 2) == "\\u") {
      at_ += 2;
      const std::uint32_t low = hex4();
      if (low < 0xDC00 || low > 0xDFFF) fail("half a surrogate pair");
      code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    } else if (code >= 0xD800 && code <= 0xDFFF) {
      fail("half a surrogate pair");
    }
    append_utf8(out, code);
  } else {
    fail("unknown escape");
  }
}

std::string JsonCursor::string() {
  expect('"', "a string");
  std::string out;
  while (true) {
    const std::size_t begin = at_;
    while (at_ < text_.size() && text_[at_] != '"' && text_[at_] != '\\' &&
           static_cast<unsigned char>(text_[at_]) >= 0x20) {
      ++at_;
    }
    out.append(text_, begin, at_ - begin);
    if (at_ >= text_.size()) fail("expected the end of a string");
    const char c = text_[at_];
    if (c != '"' && c != '\\') fail("control character in a string");
    ++at_;
    if (c == '"') return out;
    escape(out);
  }
}

std::int64_t JsonCursor::count() {
  skip_space();
  const std::size_t begin = at_;
  std::int64_t value = 0;
  for (; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_) {
    const int digit = text_[at_] - '0';
    if (__builtin_mul_overflow(value, 10, &value) || __builtin_add_overflow(value, digit, &value)) {
      fail("a number that does not fit 63 bits");
    }
  }
  const bool padded = at_ - begin > 1 && text_[begin] == '0';
  const char next = at_ < text_.size() ? text_[at_] : '\0';
  if (at_ == begin || padded || next == '.' || next == 'e' || next == 'E') {
    fail("expected a whole number");
  }
  return value;
}

std::string_view JsonCursor::raw(std::size_t limit) {
  skip_space();
  const std::size_t begin = at_;
  std::size_t depth = 0;
  bool quoted = false;
  for (; at_ < text_.size(); ++at_) {
    const char c = text_[at_];
    if (at_ - begin >= limit) fail(fmt::format("a value of more than {} bytes", limit));
    if (quoted) {
      if (c == '\\') ++at_;
      if (c == '"') quoted = false;
    } else if (c == '"') {
      quoted = true;
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if (c == '}' || c == ']') {
      if (depth == 0) break;
      --depth;
    } else if (c == ',' && depth == 0) {
      break;
    }
  }
  const std::size_t end = std::min(at_, text_.size());
  at_ = end;
  return text_.substr(begin, end - begin);
}

void JsonCursor::end() {
  skip_space();
  if (at_ != text_.size()) fail("expected nothing more");
}

}  // namespace tessera::checkpoint
