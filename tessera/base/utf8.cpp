// SPDX-License-Identifier: Apache-2.0
#include "tessera/base/utf8.h"

namespace tessera::text {
namespace {

bool is_high(char32_t code) {
  return code >= 0xD800 && code <= 0xDBFF;
}
bool is_low(char32_t code) {
  return code >= 0xDC00 && code <= 0xDFFF;
}

/// Reads four digits and advances `at` past those that it read. Returns whether there were four.
bool read_digits(std::string_view text, std::size_t& at, char32_t& code) {
  code = 0;
  for (int i = 0; i < 4; ++i, ++at) {
    const int digit = at < text.size() ? hex_digit(text[at]) : -1;
    if (digit < 0) return false;
    code = code << 4U | static_cast<char32_t>(digit);
  }
  return true;
}

}  // namespace

void append_utf8(std::string& out, char32_t code) {
  const auto put = [&out](char32_t byte) { out.push_back(static_cast<char>(byte)); };
  const auto tail = [&](unsigned shift) { put(0x80U | (code >> shift & 0x3FU)); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0U | code >> 6U);
    tail(0);
  } else if (code < 0x10000) {
    put(0xE0U | code >> 12U);
    tail(6);
    tail(0);
  } else {
    put(0xF0U | code >> 18U);
    tail(12);
    tail(6);
    tail(0);
  }
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

JsonEscape read_json_escape(std::string_view text, std::size_t at) {
  using Kind = JsonEscape::Kind;
  constexpr std::string_view kLetters = "\"\\/bfnrt", kMeanings = "\"\\/\b\f\n\r\t";
  ++at;
  if (at >= text.size()) return {Kind::Unknown, 0, at};
  const std::size_t which = kLetters.find(text[at]);
  if (which != std::string_view::npos)
    return {Kind::Character, static_cast<unsigned char>(kMeanings[which]), at + 1};
  if (text[at] != 'u') return {Kind::Unknown, 0, at + 1};
  ++at;
  char32_t code = 0;
  if (!read_digits(text, at, code)) return {Kind::BadDigits, 0, at};
  if (is_low(code)) return {Kind::LoneSurrogate, code, at};
  if (!is_high(code)) return {Kind::Character, code, at};
  if (text.substr(at, 2) != "\\u") return {Kind::LoneSurrogate, code, at};
  std::size_t next = at + 2;
  char32_t low = 0;
  if (!read_digits(text, next, low)) return {Kind::BadDigits, 0, next};
  if (!is_low(low)) return {Kind::LoneSurrogate, code, at};
  return {Kind::Character, 0x10000 + ((code - 0xD800) << 10U) + (low - 0xDC00), next};
}

}  // namespace tessera::text
