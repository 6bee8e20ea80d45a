// SPDX-License-Identifier: Apache-2.0
#include "tessera/base/four_bit_codes.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tessera/base/error.h"

namespace tessera {
namespace {

std::array<float, 16> with_sign() {
  // The means of equal parts of [0.1, 1]: one in the lowest decade, then two, then four.
  constexpr std::array<float, 7> kPositive = {
      0.0055F, 0.0325F, 0.0775F, 0.2125F, 0.4375F, 0.6625F, 0.8875F};
  std::array<float, 16> out{};
  for (std::size_t i = 0; i < kPositive.size(); ++i) {
    out[6 - i] = -kPositive[i];
    out[8 + i] = kPositive[i];
  }
  out[15] = 1.0F;
  return out;
}

std::array<float, 16> without_sign() {
  std::array<float, 16> out{};
  for (std::size_t i = 0; i < out.size(); ++i)
    out[i] = static_cast<float>(i + 1) / 16.0F;
  return out;
}

void check_codes(std::size_t numbers, std::size_t block, std::size_t codes, std::size_t scales) {
  TESSERA_ASSERT(block > 0 && block % 2 == 0 && codes == (numbers + 1) / 2 &&
                 scales == (numbers + block - 1) / block);
}

float largest_of(std::span<const float> x) {
  float largest = 0.0F;
  for (const float value : x)
    largest = std::max(largest, std::abs(value));
  return largest;
}

void encode_part(std::span<const float> x,
                 float scale,
                 const FourBitMap& map,
                 std::span<std::uint8_t> codes) {
  const float divisor = scale == 0.0F ? 1.0F : scale;
  for (std::size_t i = 0; i < x.size(); i += 2) {
    const std::uint8_t upper = map.code_of(x[i] / divisor);
    const std::uint8_t lower = i + 1 < x.size() ? map.code_of(x[i + 1] / divisor) : 0;
    codes[i / 2] = static_cast<std::uint8_t>(upper << 4U | lower);
  }
}

float decoded(std::span<const std::uint8_t> codes,
              std::size_t i,
              float scale,
              std::span<const float, 16> values) {
  const std::uint8_t both = codes[i / 2];
  return values[i % 2 == 0 ? both >> 4U : both & 15U] * scale;
}

bool gives(std::span<const std::uint8_t> codes,
           float scale,
           const FourBitMap& map,
           std::span<const float> x) {
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (decoded(codes, i, scale, map.values()) != x[i]) return false;
  }
  return true;
}

/// Scales with which the block may have been decoded.
std::vector<float> possible_scales(float largest, const FourBitMap& map) {
  std::vector<float> out = {largest, kFourBitLeastScale};
  const float end = std::abs(map.values().front());
  const float quotient = largest / end;
  float below = quotient, above = quotient;
  out.push_back(quotient);
  for (int i = 0; i < 2; ++i) {
    below = std::nextafter(below, 0.0F);
    above = std::nextafter(above, std::numeric_limits<float>::infinity());
    out.push_back(below);
    out.push_back(above);
  }
  return out;
}

}  // namespace

FourBitMap::FourBitMap(const std::array<float, 16>& values) : values_(values) {
  for (std::size_t i = 0; i + 1 < values_.size(); ++i)
    bounds_[i] = values_[i] + (values_[i + 1] - values_[i]) * 0.5F;
}

const FourBitMap& FourBitMap::positive() {
  static const FourBitMap map(without_sign());
  return map;
}

const FourBitMap& FourBitMap::both() {
  static const FourBitMap map(with_sign());
  return map;
}

std::uint8_t FourBitMap::code_of(float x) const {
  int code = 0;
  for (const float bound : bounds_)
    code += static_cast<int>(x >= bound);
  return static_cast<std::uint8_t>(code);
}

void encode_four_bits(std::span<const float> x,
                      std::size_t block,
                      const FourBitMap& map,
                      Codes4 to) {
  check_codes(x.size(), block, to.codes.size(), to.scales.size());
  for (std::size_t b = 0; b < to.scales.size(); ++b) {
    const auto part = x.subspan(b * block, std::min(block, x.size() - b * block));
    to.scales[b] = std::max(largest_of(part), kFourBitLeastScale);
    encode_part(part, to.scales[b], map, to.codes.subspan(b * block / 2, (part.size() + 1) / 2));
  }
}

void encode_four_bits_again(std::span<const float> x,
                            std::size_t block,
                            const FourBitMap& map,
                            Codes4 to) {
  check_codes(x.size(), block, to.codes.size(), to.scales.size());
  for (std::size_t b = 0; b < to.scales.size(); ++b) {
    const auto part = x.subspan(b * block, std::min(block, x.size() - b * block));
    const auto codes = to.codes.subspan(b * block / 2, (part.size() + 1) / 2);
    const float largest = largest_of(part);
    bool found = false;
    for (const float scale : possible_scales(largest, map)) {
      encode_part(part, scale, map, codes);
      to.scales[b] = scale;
      found = gives(codes, scale, map, part);
      if (found) break;
    }
    if (found) continue;
    to.scales[b] = std::max(largest, kFourBitLeastScale);
    encode_part(part, to.scales[b], map, codes);
  }
}

void decode_four_bits(std::span<const std::uint8_t> codes,
                      std::span<const float> scales,
                      std::size_t block,
                      std::span<const float, 16> values,
                      std::span<float> to) {
  check_codes(to.size(), block, codes.size(), scales.size());
  for (std::size_t b = 0; b < scales.size(); ++b) {
    const std::size_t end = std::min(to.size(), (b + 1) * block);
    for (std::size_t i = b * block; i < end; ++i)
      to[i] = decoded(codes, i, scales[b], values);
  }
}

}  // namespace tessera
