// SPDX-License-Identifier: Apache-2.0
// Tokens that stand in text as they are written: special ones and others that were added.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/data/tokenizers/trie.h"

namespace tessera::data::tokenizers {

struct AddedToken {
  std::int32_t id = 0;
  std::string content;
  bool single_word = false;  ///< only where no word character is beside it
  bool lstrip = false;       ///< takes the white space before it
  bool rstrip = false;       ///< takes the white space after it
  bool normalized = true;    ///< sought in normalized text
  bool special = false;      ///< left out of decoded text where that is asked for
};

/// Finds added tokens in text, the leftmost first and of several there the longest. Threads: const
/// methods from any thread.
class AddedTokenFinder {
 public:
  /// `pattern` is what is sought for the token.
  void add(const AddedToken& token, const std::string& pattern);
  /// A part of the text: an added token, or what is between two (id -1).
  struct Section {
    std::size_t begin, end;
    std::int32_t id;
  };
  /// Sections that cover the text, none of which is empty.
  [[nodiscard]] std::vector<Section> split(std::string_view text) const;

 private:
  std::vector<AddedToken> tokens_;
  std::vector<bool> first_bytes_ = std::vector<bool>(256);
  Trie trie_;
};

}  // namespace tessera::data::tokenizers
