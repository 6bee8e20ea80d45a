// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/tokenizers/base64.h"

#include <cstdint>

#include "tessera/text/tokenizers/part_reader.h"

namespace tessera::text::tokenizers {
namespace {

int value_of(char c) {
  if (c >= 'A' && c <= 'Z') return c - 'A';
  if (c >= 'a' && c <= 'z') return c - 'a' + 26;
  if (c >= '0' && c <= '9') return c - '0' + 52;
  return c == '+' ? 62 : c == '/' ? 63 : -1;
}

}  // namespace

std::string from_base64(std::string_view text, const std::string& where) {
  if (text.size() % 4 != 0)
    refuse_part(where, "holds base64 of a length that is not a multiple of 4");
  for (int padding = 0; padding < 2 && !text.empty() && text.back() == '='; ++padding)
    text.remove_suffix(1);
  std::string out;
  out.reserve(text.size() / 4 * 3 + 2);
  std::uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    const int value = value_of(c);
    if (value < 0) refuse_part(where, "holds a character that is not base64");
    bits = bits << 6 | static_cast<std::uint32_t>(value);
    count += 6;
    if (count < 8) continue;
    count -= 8;
    out.push_back(static_cast<char>(bits >> count & 0xFFU));
  }
  return out;
}

}  // namespace tessera::text::tokenizers
