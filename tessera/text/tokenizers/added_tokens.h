// SPDX-License-Identifier: Apache-2.0
// Tokens that are matched literally in text: special tokens and other added ones.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/text/tokenizers/trie.h"

namespace tessera::text::tokenizers {

struct AddedToken {
  std::int32_t id = 0;
  std::string content;
  bool single_word = false;  ///< only if no word character is adjacent
  bool lstrip = false;       ///< includes the white space before it
  bool rstrip = false;       ///< includes the white space after it
  bool normalized = true;    ///< searched in normalized text
  bool special = false;      ///< may be omitted from decoded text
};

/// Finds added tokens in text, the leftmost first, and of several at one position the longest.
/// Const methods can be called from any thread.
class AddedTokenFinder {
 public:
  /// `pattern` is the text to search for.
  void add(const AddedToken& token, const std::string& pattern);
  /// A part of the text: an added token, or the text between two of them (id -1).
  struct Section {
    std::size_t begin, end;
    std::int32_t id;
  };
  /// Non-empty sections that cover the text.
  [[nodiscard]] std::vector<Section> split(std::string_view text) const;

 private:
  std::vector<AddedToken> tokens_;
  std::vector<bool> first_bytes_ = std::vector<bool>(256);
  Trie trie_;
};

}  // namespace tessera::text::tokenizers
