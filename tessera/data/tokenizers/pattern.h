// SPDX-License-Identifier: Apache-2.0
// Patterns of a tokenizer.json that are searched in text: strings and regular expressions.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::data::tokenizers {

/// Ranges of bytes, ascending and disjoint.
using Ranges = std::vector<std::pair<std::size_t, std::size_t>>;

/// Finds all matches from left to right. Threads: const methods from any thread.
class Pattern {
 public:
  virtual ~Pattern() = default;
  /// Appends the matches in valid UTF-8.
  virtual void find(std::string_view text, Ranges& out) const = 0;
};
using PatternPtr = std::shared_ptr<const Pattern>;

PatternPtr string_pattern(std::string text);
/// A regular expression in the dialect of Oniguruma that tokenizers use: \w, \s, \d and \h are
/// Unicode's, ^ and $ match at lines. The patterns of GPT-2, Llama 3 and Qwen2 are matched by code
/// of their own. Error{Unsupported} for what PCRE2 does not compile. find() throws Error{Data}
/// where a match needs more than 10 million steps.
PatternPtr regex_pattern(const std::string& expression);

}  // namespace tessera::data::tokenizers
