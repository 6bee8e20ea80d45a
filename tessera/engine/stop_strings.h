// SPDX-License-Identifier: Apache-2.0
// Stop strings in the text of a generated sequence.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::engine {

/// The bytes of a generated sequence, in which stop strings are found: also across tokens, and in
/// tokens that are not shown.
class GeneratedBytes {
 public:
  /// Appends the bytes of a token. Returns true if one of `stops` now occurs in the text, which is
  /// truncated before the first of them. Cost: a search of the token's bytes and of as many bytes
  /// before them as a stop string has.
  bool append(std::string_view bytes, bool hidden, const std::vector<std::string>& stops);
  /// The bytes without those of hidden tokens.
  [[nodiscard]] std::string shown() const;

 private:
  std::string bytes_;
  std::vector<std::pair<std::size_t, std::size_t>> hidden_;  ///< [begin, end) of hidden tokens
};

/// The position of the first stop string in `text` at or after `from`; npos if there is none.
std::size_t find_stop(std::string_view text,
                      const std::vector<std::string>& stops,
                      std::size_t from = 0);

}  // namespace tessera::engine
