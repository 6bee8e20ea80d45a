// SPDX-License-Identifier: Apache-2.0
// Counter-based random numbers: a value is a function of (key, counter), so it does not depend on
// the layout.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>

namespace tessera {

/// Philox4x32-10. Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3".
struct Philox {
  using Block = std::array<std::uint32_t, 4>;
  std::uint64_t key = 0;

  /// Returns four independent 32-bit words for the 128-bit counter (lo, hi).
  [[nodiscard]] constexpr Block operator()(std::uint64_t lo, std::uint64_t hi = 0) const noexcept {
    Block c = {static_cast<std::uint32_t>(lo),
               static_cast<std::uint32_t>(lo >> 32),
               static_cast<std::uint32_t>(hi),
               static_cast<std::uint32_t>(hi >> 32)};
    std::uint32_t k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
    for (int round = 0; round < 10; ++round) {
      const std::uint64_t p0 = std::uint64_t{0xD2511F53U} * c[0],
                          p1 = std::uint64_t{0xCD9E8D57U} * c[2];
      c = {static_cast<std::uint32_t>(p1 >> 32) ^ c[1] ^ k0,
           static_cast<std::uint32_t>(p1),
           static_cast<std::uint32_t>(p0 >> 32) ^ c[3] ^ k1,
           static_cast<std::uint32_t>(p0)};
      k0 += 0x9E3779B9U;
      k1 += 0xBB67AE85U;
    }
    return c;
  }
};

/// Converts a random word to a float in [0, 1) with 24 bits.
constexpr float uniform_float(std::uint32_t word) noexcept {
  return static_cast<float>(word >> 8) * 0x1.0p-24F;
}
/// Converts two random words to a double in (0, 1] with 53 bits; never 0, so that its logarithm is
/// finite.
constexpr double uniform_double(std::uint32_t hi, std::uint32_t lo) noexcept {
  const std::uint64_t bits = (static_cast<std::uint64_t>(hi) << 21) ^ (lo >> 11);
  return (static_cast<double>(bits) + 0.5) * 0x1.0p-53;
}

/// Mixes its arguments into one 64-bit key (splitmix64 finalizer).
constexpr std::uint64_t mix64(std::uint64_t x) noexcept {
  x += 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}
constexpr std::uint64_t mix64(std::uint64_t a, std::uint64_t b) noexcept {
  return mix64(a ^ mix64(b));
}

}  // namespace tessera
