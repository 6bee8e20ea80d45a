// SPDX-License-Identifier: Apache-2.0
// Numbers in four bits by blocks, for the states of optimizers. Source: Li, Chen, Zhu 2023, "Memory
// efficient optimizers with 4-bit states"; tables, rounding and scales as in torchao.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace tessera {

/// 16 numbers in ascending order, the largest of which is 1. Of numbers with a sign, three decades,
/// each with twice as many numbers as the decade below, and zero; -1 is not included. Of numbers
/// that are not negative, 1/16, 2/16, ... 1; zero is not included.
class FourBitMap {
 public:
  static const FourBitMap& positive();
  static const FourBitMap& both();

  [[nodiscard]] const std::array<float, 16>& values() const { return values_; }
  /// The bounds between neighbours; a number on a bound belongs to the upper neighbour.
  [[nodiscard]] const std::array<float, 15>& bounds() const { return bounds_; }
  /// Returns the index of the nearest number.
  [[nodiscard]] std::uint8_t code_of(float x) const;

 private:
  explicit FourBitMap(const std::array<float, 16>& values);
  std::array<float, 16> values_{};
  std::array<float, 15> bounds_{};
};

/// The least scale of an encoded block, so that a block of zeros has one.
inline constexpr float kFourBitLeastScale = 1e-12F;

/// Destinations for numbers encoded in blocks of `block`, an even number.
struct Codes4 {
  std::span<std::uint8_t> codes;  ///< one for two numbers, the first one in the upper half
  std::span<float> scales;        ///< one for each block
};
/// Encodes `x`, finite numbers. The last block may be shorter; the lower half of a last byte of one
/// number is 0. Cost: two passes. Threads: any.
void encode_four_bits(std::span<const float> x,
                      std::size_t block,
                      const FourBitMap& map,
                      Codes4 to);
/// The same for numbers that may have been decoded before: returns codes and scales that are
/// decoded to the same numbers, if there are such, so that saving and loading changes nothing.
/// Other numbers are encoded as by encode_four_bits().
void encode_four_bits_again(std::span<const float> x,
                            std::size_t block,
                            const FourBitMap& map,
                            Codes4 to);
void decode_four_bits(std::span<const std::uint8_t> codes,
                      std::span<const float> scales,
                      std::size_t block,
                      std::span<const float, 16> values,
                      std::span<float> to);

}  // namespace tessera
