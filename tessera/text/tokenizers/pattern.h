// SPDX-License-Identifier: Apache-2.0
// Search patterns of a tokenizer.json: strings and regular expressions.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::text::tokenizers {

/// Ranges of bytes, ascending and disjoint.
using Ranges = std::vector<std::pair<std::size_t, std::size_t>>;

/// Finds all matches from left to right. Const methods can be called from any thread.
class Pattern {
 public:
  virtual ~Pattern() = default;
  /// Appends the matches in valid UTF-8. An expression may match between two characters, but not
  /// directly behind its last match.
  virtual void find(std::string_view text, Ranges& out) const = 0;
};
using PatternPtr = std::shared_ptr<const Pattern>;

PatternPtr string_pattern(std::string text);
/// A regular expression in the dialect of Oniguruma that tokenizers use: \w, \s, \d and \h use
/// Unicode properties, ^ and $ match at lines. Dedicated code matches the patterns of GPT-2, Llama
/// 3 and Qwen2. Throws Error{Unsupported} for expressions that PCRE2 cannot compile. find() throws
/// Error{Data} if a match needs more than 10 million steps.
PatternPtr regex_pattern(const std::string& expression);

}  // namespace tessera::text::tokenizers
