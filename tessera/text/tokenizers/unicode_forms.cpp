// SPDX-License-Identifier: Apache-2.0
// Unicode normalization with the changes that lead to each character.
#include <algorithm>
#include <array>

#include <utf8proc.h>

#include "tessera/text/tokenizers/characters.h"
#include "tessera/text/tokenizers/normalizers.h"

namespace tessera::text::tokenizers {
namespace {

int combining_class(char32_t c) {
  return utf8proc_get_property(static_cast<utf8proc_int32_t>(c))->combining_class;
}

/// Characters that Unicode gave a decomposition after its version 11, which is that of the
/// tokenizers library: they stay whole there, and models were trained so.
bool is_whole(char32_t c) {
  struct Range {
    char32_t first, last;
  };
  static constexpr std::array<Range, 11> kLater = {{{0x32FF, 0x32FF},
                                                    {0xA7F1, 0xA7F4},
                                                    {0xAB69, 0xAB69},
                                                    {0x105C9, 0x105E4},
                                                    {0x10781, 0x107BA},
                                                    {0x11383, 0x113C8},
                                                    {0x11938, 0x11938},
                                                    {0x16121, 0x16D6A},
                                                    {0x1CCD6, 0x1CCF9},
                                                    {0x1E030, 0x1E06D},
                                                    {0x1FBF0, 0x1FBF9}}};
  const auto later = std::any_of(kLater.begin(), kLater.end(), [c](const Range& range) {
    return c >= range.first && c <= range.last;
  });
  return later || c == 0x1F16C;
}

void decompose(char32_t c, bool compatibility, std::vector<Change>& out) {
  if (c >= 0x32FF && is_whole(c)) {
    out.push_back({c, 0});
    return;
  }
  std::array<utf8proc_int32_t, 32> buffer{};
  int boundary = 0;
  const auto options =
      static_cast<utf8proc_option_t>(UTF8PROC_DECOMPOSE | (compatibility ? UTF8PROC_COMPAT : 0));
  const utf8proc_ssize_t count = utf8proc_decompose_char(
      static_cast<utf8proc_int32_t>(c), buffer.data(), buffer.size(), options, &boundary);
  if (count < 1 || count > static_cast<utf8proc_ssize_t>(buffer.size())) {
    out.push_back({c, 0});
    return;
  }
  for (utf8proc_ssize_t i = 0; i < count; ++i)
    out.push_back({static_cast<char32_t>(buffer[static_cast<std::size_t>(i)]), i == 0 ? 0 : 1});
}

// Sorts the marks of one base character by their combining class.
void reorder(std::vector<Change>& changes) {
  for (std::size_t begin = 0; begin < changes.size();) {
    if (combining_class(changes[begin].character) == 0) {
      ++begin;
      continue;
    }
    std::size_t end = begin;
    while (end < changes.size() && combining_class(changes[end].character) != 0)
      ++end;
    std::stable_sort(changes.begin() + static_cast<std::ptrdiff_t>(begin),
                     changes.begin() + static_cast<std::ptrdiff_t>(end),
                     [](const Change& a, const Change& b) {
                       return combining_class(a.character) < combining_class(b.character);
                     });
    begin = end;
  }
}

// The primary composite of two characters; 0 if there is none.
char32_t composite(char32_t a, char32_t b) {
  std::array<utf8proc_int32_t, 4> pair = {static_cast<utf8proc_int32_t>(a),
                                          static_cast<utf8proc_int32_t>(b)};
  const utf8proc_ssize_t count = utf8proc_normalize_utf32(
      pair.data(), 2, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  const auto whole = static_cast<char32_t>(pair[0]);
  return count == 1 && !is_whole(whole) ? whole : 0;
}

std::vector<Change> compose(const std::vector<Change>& in) {
  std::vector<Change> out;
  out.reserve(in.size());
  std::ptrdiff_t base = -1;
  int last_class = 0;
  for (const Change& change : in) {
    const int own = combining_class(change.character);
    const bool adjacent = base + 1 == static_cast<std::ptrdiff_t>(out.size());
    const bool reachable = base >= 0 && (adjacent || (last_class != 0 && last_class < own));
    if (reachable) {
      Change& starter = out[static_cast<std::size_t>(base)];
      if (const char32_t c = composite(starter.character, change.character)) {
        starter = {c, starter.delta + change.delta - 1};
        continue;
      }
    }
    if (own == 0) base = static_cast<std::ptrdiff_t>(out.size());
    last_class = own;
    out.push_back(change);
  }
  return out;
}

}  // namespace

std::vector<Change> unicode_changes(std::string_view text, UnicodeForm form) {
  const bool compatibility = form == UnicodeForm::Nfkc || form == UnicodeForm::Nfkd;
  std::vector<Change> changes;
  changes.reserve(text.size());
  for (std::size_t at = 0; at < text.size();)
    decompose(next_character(text, at), compatibility, changes);
  reorder(changes);
  return form == UnicodeForm::Nfc || form == UnicodeForm::Nfkc ? compose(changes) : changes;
}

}  // namespace tessera::text::tokenizers
