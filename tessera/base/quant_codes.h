// SPDX-License-Identifier: Apache-2.0
// Tables of the numbers that codes of four or eight bits represent: NF4 (Dettmers et al. 2023,
// "QLoRA: efficient finetuning of quantized LLMs") and the dynamic map (Dettmers 2015, "8-bit
// approximations for parallelism in deep learning"; Dettmers et al. 2021, "8-bit optimizers via
// block-wise quantization"), with the values of bitsandbytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace tessera {

/// Quantiles of a normal distribution, scaled to [-1, 1], in ascending order, including 0.
inline constexpr std::array<float, 16> kNf4Values = {
    -1.0F,
    -0.6961928009986877F,
    -0.5250730514526367F,
    -0.39491748809814453F,
    -0.28444138169288635F,
    -0.18477343022823334F,
    -0.09105003625154495F,
    0.0F,
    0.07958029955625534F,
    0.16093020141124725F,
    0.24611230194568634F,
    0.33791524171829224F,
    0.44070982933044434F,
    0.5626170039176941F,
    0.7229568362236023F,
    1.0F,
};

/// The midpoints of neighbours in a table; a number equal to a midpoint belongs to the lower
/// neighbour.
template <std::size_t N>
constexpr std::array<float, N - 1> midpoints(const std::array<float, N>& values) {
  std::array<float, N - 1> out{};
  for (std::size_t i = 0; i + 1 < N; ++i)
    out[i] = (values[i] + values[i + 1]) / 2.0F;
  return out;
}
inline constexpr std::array<float, 15> kNf4Midpoints = midpoints(kNf4Values);

/// 256 numbers in [0, 1], or with a sign in (-1, 1]: seven decades, each with twice as many numbers
/// as the decade below. Zero and one are included, minus one is not.
class DynamicMap {
 public:
  /// The table without negative numbers, and the table with as many negative as positive ones.
  static const DynamicMap& positive();
  static const DynamicMap& both();

  [[nodiscard]] const std::array<float, 256>& values() const { return values_; }
  /// Returns the index of the nearest number. `x` must be in [-1, 1]; in the table without negative
  /// numbers, x below 0 counts as 0. Cost: one look-up and one comparison.
  [[nodiscard]] std::uint8_t code_of(float x) const;

 private:
  explicit DynamicMap(bool both);
  // The upper bits of a float, up to the seventh of its mantissa, determine the near numbers, with
  // at most one midpoint between them.
  static constexpr int kShift = 16;
  static constexpr std::size_t kSteps = (0x3f800000U >> kShift) + 1;

  std::array<float, 256> values_{};
  std::array<float, 256> midpoints_{};  ///< the last one is infinite
  /// Code of the first candidate, by sign and upper bits.
  std::array<std::array<std::uint8_t, kSteps>, 2> first_{};
};

/// Destinations for numbers encoded in blocks of `block`: a scale for each block, its largest
/// magnitude, and eight bits for each number. Source: bitsandbytes' quantize_blockwise().
struct Codes8 {
  std::span<std::uint8_t> codes;  ///< one for each number
  std::span<float> scales;        ///< one for each block
};
/// Encodes `x`, finite numbers. `to` must have a code for each number and a scale for each block,
/// the last of which may be shorter. Cost: two passes. Threads: any.
void encode_blocks(std::span<const float> x, std::size_t block, const DynamicMap& map, Codes8 to);
/// The same as encode_blocks() for numbers that may have been decoded before: returns the codes and
/// scales from which they were decoded, if there are such codes, so that saving and loading changes
/// nothing. Other numbers are encoded as by encode_blocks().
void encode_blocks_again(std::span<const float> x,
                         std::size_t block,
                         const DynamicMap& map,
                         Codes8 to);
/// Decodes; `values` are the 256 numbers that the codes represent.
void decode_blocks(std::span<const std::uint8_t> codes,
                   std::span<const float> scales,
                   std::size_t block,
                   std::span<const float, 256> values,
                   std::span<float> to);

}  // namespace tessera
