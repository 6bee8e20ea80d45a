// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/tokenizers/characters.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

#include <utf8proc.h>

#include "tessera/text/unicode_class.h"

namespace tessera::text::tokenizers {
namespace {

utf8proc_category_t category(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

// The number of invalid bytes that one U+FFFD replaces: an incomplete character counts as one (the
// practice that Unicode recommends, 3.9).
std::size_t invalid_length(std::string_view rest) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(rest[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0xC2 || lead > 0xF4) return 1;
  const std::size_t need = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  unsigned char low = 0x80, high = 0xBF;
  if (lead == 0xE0) low = 0xA0;
  if (lead == 0xED) high = 0x9F;
  if (lead == 0xF0) low = 0x90;
  if (lead == 0xF4) high = 0x8F;
  std::size_t length = 1;
  while (length < need && length < rest.size() && byte(length) >= low && byte(length) <= high) {
    ++length;
    low = 0x80;
    high = 0xBF;
  }
  return length;
}

}  // namespace

std::size_t ascii_length(std::string_view text, std::size_t at) {
  constexpr std::uint64_t kHighBits = 0x8080808080808080U;
  std::size_t end = at;
  for (std::uint64_t word = 0; end + sizeof word <= text.size(); end += sizeof word) {
    std::memcpy(&word, text.data() + end, sizeof word);
    if ((word & kHighBits) != 0) break;
  }
  while (end < text.size() && static_cast<unsigned char>(text[end]) < 0x80)
    ++end;
  return end - at;
}

std::vector<char32_t> characters_of(std::string_view text) {
  std::vector<char32_t> out;
  out.reserve(text.size());
  for (std::size_t at = 0; at < text.size();)
    out.push_back(next_character(text, at));
  return out;
}

std::size_t count_characters(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U;
  }));
}

bool is_valid_utf8(std::string_view text) {
  const char* const end = text.data() + text.size();
  for (std::size_t at = ascii_length(text); at < text.size(); at += ascii_length(text, at)) {
    const Decoded c = decode_utf8(text.data() + at, end);
    if (!c.valid) return false;
    at += static_cast<std::size_t>(c.length);
  }
  return true;
}

std::string to_valid_utf8(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  for (std::size_t at = 0; at < bytes.size();) {
    const Decoded c = decode_utf8(bytes.data() + at, bytes.data() + bytes.size());
    if (c.valid) {
      out.append(bytes, at, static_cast<std::size_t>(c.length));
      at += static_cast<std::size_t>(c.length);
    } else {
      out += "\xEF\xBF\xBD";
      at += invalid_length(bytes.substr(at));
    }
  }
  return out;
}

bool is_space(char32_t c) {
  return CharClasses::instance().of(c) == CharClass::Space;
}

bool is_punctuation(char32_t c) {
  const auto k = category(c);
  return k >= UTF8PROC_CATEGORY_PC && k <= UTF8PROC_CATEGORY_PO;
}

bool is_mark(char32_t c) {
  const auto k = category(c);
  return k == UTF8PROC_CATEGORY_MN || k == UTF8PROC_CATEGORY_MC || k == UTF8PROC_CATEGORY_ME;
}

bool is_nonspacing_mark(char32_t c) {
  return category(c) == UTF8PROC_CATEGORY_MN;
}

bool is_control(char32_t c) {
  return category(c) >= UTF8PROC_CATEGORY_CC;
}

bool is_unassigned(char32_t c) {
  return category(c) == UTF8PROC_CATEGORY_CN;
}

bool is_number(char32_t c) {
  return CharClasses::instance().of(c) == CharClass::Number;
}

bool is_word(char32_t c) {
  if (c == 0x200C || c == 0x200D) return true;
  switch (category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:  // circled and squared letters are alphabetic too
      return (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
             (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189);
  }
}

bool is_cjk(char32_t c) {
  struct Block {
    char32_t first, last;
  };
  static constexpr std::array<Block, 8> kBlocks = {{{0x4E00, 0x9FFF},
                                                    {0x3400, 0x4DBF},
                                                    {0x20000, 0x2A6DF},
                                                    {0x2A700, 0x2B73F},
                                                    {0x2B740, 0x2B81F},
                                                    {0x2B920, 0x2CEAF},
                                                    {0xF900, 0xFAFF},
                                                    {0x2F800, 0x2FA1F}}};
  return std::any_of(
      kBlocks.begin(), kBlocks.end(), [&](const Block& b) { return c >= b.first && c <= b.last; });
}

void append_lower(std::vector<char32_t>& out, char32_t c) {
  if (c == 0x130) {
    out.push_back(U'i');
    out.push_back(0x307);
    return;
  }
  out.push_back(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
}

}  // namespace tessera::text::tokenizers
