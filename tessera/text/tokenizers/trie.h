// SPDX-License-Identifier: Apache-2.0
// A set of byte strings that finds the members with which a text begins.
#pragma once

#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace tessera::text::tokenizers {

/// A trie over bytes with one table of edges. Memory: at most some 32 bytes per byte of the
/// strings. Const methods can be called from any thread.
class Trie {
 public:
  /// A string that is added twice keeps its first value. `text` must not be empty.
  void add(std::string_view text, std::int32_t value) {
    std::uint32_t node = 0;
    for (const char c : text) {
      const auto [edge, is_new] =
          edges_.try_emplace(key(node, c), static_cast<std::uint32_t>(values_.size()));
      if (is_new) values_.push_back(kNone);
      node = edge->second;
    }
    if (values_[node] == kNone) values_[node] = value;
  }
  /// Calls found(length, value) for each member with which `text` begins, shorter ones first.
  template <class Found>
  void prefixes(std::string_view text, const Found& found) const {
    std::uint32_t node = 0;
    for (std::size_t i = 0; i < text.size(); ++i) {
      const auto edge = edges_.find(key(node, text[i]));
      if (edge == edges_.end()) return;
      node = edge->second;
      if (values_[node] != kNone) found(i + 1, values_[node]);
    }
  }

 private:
  static constexpr std::int32_t kNone = -1;
  static std::uint64_t key(std::uint32_t node, char c) {
    return static_cast<std::uint64_t>(node) << 8 | static_cast<unsigned char>(c);
  }
  std::unordered_map<std::uint64_t, std::uint32_t> edges_;
  std::vector<std::int32_t> values_{kNone};
};

}  // namespace tessera::text::tokenizers
