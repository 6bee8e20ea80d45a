// SPDX-License-Identifier: Apache-2.0
// The four character classes of the GPT-2 splitter, by Unicode general category.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace tessera::text {

/// Letter: \p{L}. Number: \p{N}. Space: Unicode's White_Space, which is \s (U+0085, U+00A0, U+3000
/// are; U+001C, U+200B, U+FEFF are not). Other: the rest, and every byte that is not part of valid
/// UTF-8.
enum class CharClass : std::uint8_t { Other, Letter, Number, Space };

/// Two-stage table over all code points; built once per process, some 30 kB.
class CharClasses {
 public:
  static const CharClasses& instance();
  [[nodiscard]] CharClass of(char32_t code_point) const {
    return blocks_[index_[code_point >> kShift]][code_point & kMask];
  }
  /// The class of a byte below 0x80.
  [[nodiscard]] CharClass of_ascii(unsigned char byte) const { return ascii_[byte]; }

 private:
  CharClasses();
  static constexpr int kShift = 8;
  static constexpr char32_t kMask = 0xFF;
  using Block = std::array<CharClass, 256>;
  std::array<CharClass, 128> ascii_;
  std::array<std::uint16_t, 0x1100> index_;
  std::vector<Block> blocks_;
};

/// A character and its length in bytes.
struct Decoded {
  char32_t code_point;
  int length;
  bool valid;
};

/// The character at `p` (p < end). Overlong forms, surrogates and truncated sequences count as one
/// invalid byte.
inline Decoded decode_utf8(const char* p, const char* end) {
  const auto byte = [p](int i) { return static_cast<unsigned char>(p[i]); };
  const auto tail = [&](int i) { return (byte(i) & 0xC0U) == 0x80U; };
  const unsigned char lead = byte(0);
  const std::ptrdiff_t left = end - p;
  if (lead < 0x80) return {lead, 1, true};
  if (lead >= 0xC2 && lead < 0xE0 && left >= 2 && tail(1)) {
    return {static_cast<char32_t>((lead & 0x1FU) << 6 | (byte(1) & 0x3FU)), 2, true};
  }
  if (lead >= 0xE0 && lead < 0xF0 && left >= 3 && tail(1) && tail(2)) {
    const char32_t c = (lead & 0x0FU) << 12 | (byte(1) & 0x3FU) << 6 | (byte(2) & 0x3FU);
    if (c >= 0x800 && (c < 0xD800 || c > 0xDFFF)) return {c, 3, true};
  }
  if (lead >= 0xF0 && lead < 0xF5 && left >= 4 && tail(1) && tail(2) && tail(3)) {
    const char32_t c =
        (lead & 0x07U) << 18 | (byte(1) & 0x3FU) << 12 | (byte(2) & 0x3FU) << 6 | (byte(3) & 0x3FU);
    if (c >= 0x10000 && c <= 0x10FFFF) return {c, 4, true};
  }
  return {lead, 1, false};
}

/// Class and length of the character at `p` (p < end).
struct Classified {
  CharClass kind;
  int length;
};
inline Classified classify(const CharClasses& classes, const char* p, const char* end) {
  const auto lead = static_cast<unsigned char>(*p);
  if (lead < 0x80) return {classes.of_ascii(lead), 1};
  const Decoded c = decode_utf8(p, end);
  return {c.valid ? classes.of(c.code_point) : CharClass::Other, c.length};
}

}  // namespace tessera::text
