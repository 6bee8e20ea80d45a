// SPDX-License-Identifier: Apache-2.0
#include "tessera/checkpoint/json_cursor.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/base/utf8.h"
#include "tessera/config/json.h"

namespace tessera::checkpoint {
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

void JsonCursor::escape(std::string& out) {
  const text::JsonEscape found = text::read_json_escape(text_, at_);
  at_ = std::min(found.end, text_.size());
  switch (found.kind) {
    case text::JsonEscape::Kind::Character:
      return text::append_utf8(out, found.code);
    case text::JsonEscape::Kind::LoneSurrogate:
      fail("half a surrogate pair");
    case text::JsonEscape::Kind::BadDigits:
      fail("expected four hexadecimal digits");
    case text::JsonEscape::Kind::Unknown:
      fail(found.end >= text_.size() ? "expected the end of a string" : "unknown escape");
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
    if (c == '"') {
      ++at_;
      return out;
    }
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
