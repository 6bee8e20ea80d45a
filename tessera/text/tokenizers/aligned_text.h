// SPDX-License-Identifier: Apache-2.0
// Text that tracks through normalization which bytes of the original it came from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::text::tokenizers {

/// A range of bytes [begin, end).
struct Span {
  std::uint32_t begin = 0;
  std::uint32_t end = 0;
};

/// A character that normalization writes, and its effect on the characters that it reads. `delta`
/// is 0 if the character replaces one, 1 if it is inserted, and -n if it replaces one and the
/// following n characters are removed. The rule is that of NormalizedString of the tokenizers
/// library.
struct Change {
  char32_t character;
  std::int32_t delta;
};

/// Valid UTF-8 with the span of the original for each byte. Without tracking no spans are kept, and
/// all operations cost the same as on a plain string. Thread safety is that of a standard
/// container.
class AlignedText {
 public:
  AlignedText() = default;
  /// `text` begins at byte `at` of the original.
  AlignedText(std::string_view text, std::size_t at, bool tracked);

  [[nodiscard]] const std::string& str() const { return text_; }
  [[nodiscard]] bool empty() const { return text_.empty(); }
  /// True if the text begins where the original begins.
  [[nodiscard]] bool at_start() const { return at_start_; }
  /// True if bytes of the original are tracked.
  [[nodiscard]] bool tracked() const { return tracked_; }
  [[nodiscard]] AlignedText slice(std::size_t begin, std::size_t end) const;
  /// The bytes of the original for [begin, end) of this text.
  [[nodiscard]] Span original(std::size_t begin, std::size_t end) const;

  /// Throws Error{Data} if `bytes` exceed what may become of the text (budget::normalized). The
  /// operations below call it before they write; a normalizer that collects changes does, too.
  void require_room(std::size_t bytes) const;
  /// Rewrites the whole text; the first `skipped` bytes are removed before the first change.
  void transform(const std::vector<Change>& changes, std::size_t skipped = 0);
  /// Rewrites the whole text. Only for a text that is not tracked.
  void rewrite(std::string text);
  /// Inserts before the first character; an empty text stays empty.
  void prepend(std::string_view inserted);
  /// Replaces each of the ascending, disjoint byte ranges by `content`.
  void replace(const std::vector<std::pair<std::size_t, std::size_t>>& ranges,
               std::string_view content);
  /// Writes each byte as its printable character in byte-level BPE.
  void to_byte_characters();

 private:
  std::string text_;
  std::vector<Span> spans_;
  std::uint64_t room_ = 0;  ///< what may become of the text from which this one was made
  bool tracked_ = false;
  bool at_start_ = true;
};

/// The printable character of each byte in byte-level BPE, as UTF-8, and the inverse (-1: none).
const std::string& byte_character(unsigned char byte);
int byte_of_character(char32_t character);

}  // namespace tessera::text::tokenizers
