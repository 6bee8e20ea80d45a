// SPDX-License-Identifier: Apache-2.0
// A cache of merged words: maps bytes to ids within one cache line.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace tessera::text {

namespace detail {
/// 32 bytes of ones, then 32 of zeros: a load at 32 - n is the mask of the first n bytes.
struct KeepFirst {
  unsigned char bytes[64];
  constexpr KeepFirst() : bytes{} {
    for (int i = 0; i < 32; ++i)
      bytes[i] = 0xFF;
  }
};
inline constexpr KeepFirst kKeepFirst;
}  // namespace detail

/// A direct-mapped table of short words; a newer word replaces an older one, so that the size is
/// constant. Each thread needs its own instance.
class WordCache {
 public:
  static constexpr std::size_t kLongestWord = 31;  ///< bytes
  static constexpr std::size_t kMostIds = 7;

  /// The word, with its length in the last byte: equal keys are equal words.
  struct Key {
    std::uint64_t part[4];
    bool operator==(const Key&) const = default;
  };
  struct alignas(64) Entry {
    Key key;
    std::int32_t ids[kMostIds];
    std::int32_t count;
  };

  WordCache() : entries_(kEntries, Entry{}) {}

  /// The key of [p, p + length), 0 < length <= kLongestWord. `end` bounds what may be read.
  static Key key_of(const char* p, std::size_t length, const char* end) {
    Key key{};
    if (static_cast<std::size_t>(end - p) >= sizeof key) {
      Key mask;
      std::memcpy(&key, p, sizeof key);
      std::memcpy(&mask, detail::kKeepFirst.bytes + sizeof key - length, sizeof key);
      for (int i = 0; i < 4; ++i)
        key.part[i] &= mask.part[i];
    } else {
      std::memcpy(&key, p, length);
    }
    // The last byte of the key on a little-endian machine.
    key.part[3] |= static_cast<std::uint64_t>(length) << 56;
    return key;
  }
  /// The only entry that can hold the word.
  Entry& entry(const Key& key) {
    const std::uint64_t hash =
        fold(key.part[0] ^ 0x2D358DCCAA6C78A5ULL, key.part[1] ^ 0x8BB84B93962EACC9ULL) ^
        fold(key.part[2] ^ 0x4B33A62ED433D4A3ULL, key.part[3] ^ 0x4D5A2DA51DE1AA47ULL);
    return entries_[hash & (kEntries - 1)];
  }
  static void store(Entry& entry, const Key& key, std::span<const std::int32_t> ids) {
    if (ids.size() > kMostIds) return;
    entry.key = key;
    entry.count = static_cast<std::int32_t>(ids.size());
    std::memcpy(entry.ids, ids.data(), ids.size_bytes());
  }

 private:
  static constexpr std::size_t kEntries = std::size_t{1}
                                          << 15;  // 2 MiB, which fits into a second-level cache
  static std::uint64_t fold(std::uint64_t a, std::uint64_t b) {
    const auto product = static_cast<unsigned __int128>(a) * b;
    return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
  }
  std::vector<Entry> entries_;
};

}  // namespace tessera::text
