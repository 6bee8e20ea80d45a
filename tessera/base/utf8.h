// SPDX-License-Identifier: Apache-2.0
// Characters as bytes, and the escapes of JSON strings.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tessera::text {

/// Appends the character as UTF-8. `code` is below 0x110000.
void append_utf8(std::string& out, char32_t code);

/// Returns the value of a hexadecimal digit of either case; -1 for any other character.
int hex_digit(char c);

/// An escape in a JSON string: a backslash and what follows it.
struct JsonEscape {
  enum class Kind : std::uint8_t {
    Character,
    LoneSurrogate,  ///< half of a surrogate pair; `code` is that half
    BadDigits,      ///< \u without four hexadecimal digits; `end` is the first other character
    Unknown,        ///< another letter, or the end of the text
  };
  Kind kind = Kind::Unknown;
  char32_t code = 0;
  std::size_t end = 0;  ///< the position after the escape
};
/// Reads the escape whose backslash is at `at`, and both halves of a surrogate pair.
JsonEscape read_json_escape(std::string_view text, std::size_t at);

}  // namespace tessera::text
