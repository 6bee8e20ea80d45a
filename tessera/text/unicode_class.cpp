// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/unicode_class.h"

#include <algorithm>

#include <utf8proc.h>

namespace tessera::text {
namespace {

// White_Space of PropList.txt. The general categories do not determine it: it has the separators
// Zs, Zl, Zp and six controls.
bool is_white_space(char32_t c, utf8proc_category_t category) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x85 || category == UTF8PROC_CATEGORY_ZS ||
         category == UTF8PROC_CATEGORY_ZL || category == UTF8PROC_CATEGORY_ZP;
}

CharClass class_of(char32_t c) {
  const utf8proc_category_t category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  if (is_white_space(c, category)) return CharClass::Space;
  if (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO)
    return CharClass::Letter;
  if (category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO)
    return CharClass::Number;
  return CharClass::Other;
}

}  // namespace

const CharClasses& CharClasses::instance() {
  static const CharClasses classes;
  return classes;
}

CharClasses::CharClasses() {
  for (char32_t c = 0; c < 0x80; ++c)
    ascii_[c] = class_of(c);
  for (std::size_t i = 0; i < index_.size(); ++i) {
    Block block;
    for (std::size_t k = 0; k < block.size(); ++k) {
      block[k] = class_of(static_cast<char32_t>(i << kShift | k));
    }
    const auto same = std::find(blocks_.begin(), blocks_.end(), block);
    index_[i] = static_cast<std::uint16_t>(same - blocks_.begin());
    if (same == blocks_.end()) blocks_.push_back(block);
  }
}

}  // namespace tessera::text
