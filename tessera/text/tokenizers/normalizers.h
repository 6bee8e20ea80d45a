// SPDX-License-Identifier: Apache-2.0
// Normalizers, which change text before it is split: Unicode forms, case, replacements.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tessera/text/tokenizers/aligned_text.h"
#include "tessera/text/tokenizers/part_reader.h"
#include "tessera/text/tokenizers/pattern.h"

namespace tessera::text::tokenizers {

/// Rewrites text. Const methods can be called from any thread.
class Normalizer {
 public:
  virtual ~Normalizer() = default;
  virtual void apply(AlignedText& text) const = 0;
};
using NormalizerPtr = std::shared_ptr<const Normalizer>;

/// Creates the normalizer of "type", as the tokenizers library defines it. Throws
/// Error{Unsupported} for an unknown type, and Error{Format} for members of the wrong type,
/// Sequences nested deeper than kDeepestSequence, and an inconsistent charsmap.
NormalizerPtr read_normalizer(const Part& part, int depth = 0);

/// Normalizers for tokenizers whose files contain no parts. A character may map to none, one or
/// more characters; the parts of a sequence run in order.
using CharacterMap = std::function<void(char32_t, std::vector<char32_t>&)>;
NormalizerPtr map_characters(CharacterMap map);
NormalizerPtr normalize_in_sequence(std::vector<NormalizerPtr> parts);

/// {"String": ...} or {"Regex": ...}.
PatternPtr read_pattern(const Part& part);

/// Converts the characters to a Unicode normalization form, with the changes that lead to it.
enum class UnicodeForm { Nfc, Nfd, Nfkc, Nfkd };
std::vector<Change> unicode_changes(std::string_view text, UnicodeForm form);
NormalizerPtr normalize_to(UnicodeForm form);

/// The replacement table of SentencePiece models: a double array over UTF-8 bytes, and the texts to
/// which its values refer.
class Charsmap {
 public:
  /// `blob` is the format in models: u32 size of the array, the array, the texts. Throws
  /// Error{Format} for inconsistent sizes.
  explicit Charsmap(const std::string& blob, const std::string& where);
  struct Match {
    std::size_t length = 0;  ///< length of the key in bytes; 0: none
    std::string_view text;
  };
  /// The shortest key with which `text` begins.
  [[nodiscard]] Match shortest(std::string_view text) const { return find(text, true); }
  [[nodiscard]] Match longest(std::string_view text) const { return find(text, false); }

 private:
  [[nodiscard]] Match find(std::string_view text, bool first) const;
  std::vector<std::uint32_t> units_;
  std::string texts_;
};

}  // namespace tessera::text::tokenizers
