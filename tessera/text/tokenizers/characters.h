// SPDX-License-Identifier: Apache-2.0
// UTF-8 characters and the Unicode properties that tokenizers need.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/utf8.h"
#include "tessera/text/unicode_class.h"

namespace tessera::text::tokenizers {

/// The length of a valid UTF-8 character, from its first byte.
inline std::size_t character_length(char lead) {
  const auto byte = static_cast<unsigned char>(lead);
  if (byte < 0x80) return 1;
  if (byte < 0xE0) return 2;
  return byte < 0xF0 ? 3 : 4;
}
/// Returns the character at `at` and advances `at` behind it. The text must be valid UTF-8.
inline char32_t next_character(std::string_view text, std::size_t& at) {
  const auto byte = static_cast<unsigned char>(text[at]);
  if (byte < 0x80) {
    ++at;
    return byte;
  }
  const Decoded c = decode_utf8(text.data() + at, text.data() + text.size());
  at += static_cast<std::size_t>(c.length);
  return c.code_point;
}
/// The length of the part of `text` from `at` on that consists of ASCII characters.
std::size_t ascii_length(std::string_view text, std::size_t at = 0);
std::vector<char32_t> characters_of(std::string_view text);
std::size_t count_characters(std::string_view text);
bool is_valid_utf8(std::string_view text);
/// Replaces each maximal invalid part of a UTF-8 character by U+FFFD.
std::string to_valid_utf8(std::string_view bytes);

bool is_space(char32_t c);            ///< White_Space
bool is_punctuation(char32_t c);      ///< P*
bool is_mark(char32_t c);             ///< M*
bool is_nonspacing_mark(char32_t c);  ///< Mn
bool is_control(char32_t c);          ///< C* without Cn
bool is_unassigned(char32_t c);       ///< Cn
bool is_number(char32_t c);           ///< N*
bool is_word(char32_t c);             ///< \w: letters, marks, decimal digits, connectors
bool is_cjk(char32_t c);              ///< BERT's blocks of Chinese characters
/// Appends the lower case of one character, which is more than one character for U+0130.
void append_lower(std::vector<char32_t>& out, char32_t c);

}  // namespace tessera::text::tokenizers
