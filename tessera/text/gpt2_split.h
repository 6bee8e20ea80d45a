// SPDX-License-Identifier: Apache-2.0
// GPT-2's pattern as handwritten code: '(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+|
// ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
#pragma once

#include <cstddef>
#include <string_view>

#include "tessera/text/unicode_class.h"

namespace tessera::text {

/// Iterates over the pieces of a text. Every byte belongs to exactly one piece; merges never cross
/// pieces.
class Gpt2Splitter {
 public:
  explicit Gpt2Splitter(const CharClasses& classes) : classes_(classes) {}

  /// The end of the piece that starts at `p` (p < end).
  const char* next(const char* p, const char* end) const {
    if (*p == '\'') {
      if (const int length = contraction(p, end)) return p + length;
    }
    Classified first = classify(classes_, p, end);
    if (*p == ' ' && p + 1 < end) {
      const Classified second = classify(classes_, p + 1, end);
      if (second.kind != CharClass::Space) {
        ++p;
        first = second;
      }
    }
    if (first.kind == CharClass::Space) return spaces(p, first.length, end);
    return run(p + first.length, end, first.kind);
  }

  /// The first position at or after `from` where `text` can be split into two parts that are
  /// encoded separately with the same ids: before white space that follows another character. No
  /// piece extends over such a position, and the look-ahead of a run of white space never reaches
  /// it.
  std::size_t cut(std::string_view text, std::size_t from) const {
    const char* const begin = text.data();
    const char* const end = begin + text.size();
    const char* p = begin + (from < text.size() ? from : text.size());
    while (p > begin && p < end && (static_cast<unsigned char>(*p) & 0xC0U) == 0x80U)
      --p;
    CharClass before = CharClass::Space;  // characters before p are not read
    while (p < end) {
      const Classified c = classify(classes_, p, end);
      if (c.kind == CharClass::Space && before != CharClass::Space) break;
      before = c.kind;
      p += c.length;
    }
    return static_cast<std::size_t>(p - begin);
  }

 private:
  static int contraction(const char* p, const char* end) {
    if (end - p < 2) return 0;
    switch (p[1]) {
      case 's':
      case 'd':
      case 'm':
      case 't':
        return 2;
      case 'l':
        return end - p >= 3 && p[2] == 'l' ? 3 : 0;
      case 'v':
      case 'r':
        return end - p >= 3 && p[2] == 'e' ? 3 : 0;
      default:
        return 0;
    }
  }

  const char* run(const char* p, const char* end, CharClass kind) const {
    while (p < end) {
      const auto byte = static_cast<unsigned char>(*p);
      if (byte < 0x80) {
        if (classes_.of_ascii(byte) != kind) break;
        ++p;
        continue;
      }
      const Classified c = classify(classes_, p, end);
      if (c.kind != kind) break;
      p += c.length;
    }
    return p;
  }

  // The last white space before a word belongs to the word (or stands alone if there is only one).
  const char* spaces(const char* p, int length, const char* end) const {
    const char* last = p;
    const char* q = p + length;
    while (q < end) {
      const Classified c = classify(classes_, q, end);
      if (c.kind != CharClass::Space) return last == p ? q : last;
      last = q;
      q += c.length;
    }
    return q;
  }

  const CharClasses& classes_;
};

}  // namespace tessera::text
