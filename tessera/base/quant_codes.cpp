// SPDX-License-Identifier: Apache-2.0
#include "tessera/base/quant_codes.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "tessera/base/error.h"

namespace tessera {
namespace {

constexpr int kDecades = 7;
/// A block with a smaller scale counts as zeros.
constexpr float kSmallestScale = 1e-38F;

std::array<float, 256> dynamic_values(bool both) {
  std::vector<double> out = {0.0, 1.0};
  for (int decade = 0; decade < kDecades; ++decade) {
    // The bounds divide [0.1, 1] into equal parts, whose means are the numbers.
    const int parts = both ? 1 << decade : 2 << decade;
    const auto bound = [&](int i) {
      const float step = (1.0F - 0.1F) / static_cast<float>(parts);
      return i < (parts + 1) / 2 ? 0.1F + step * static_cast<float>(i)
                                 : 1.0F - step * static_cast<float>(parts - i);
    };
    const auto scale = static_cast<float>(std::pow(10.0, decade - (kDecades - 1)));
    for (int i = 0; i < parts; ++i) {
      const float mean = (bound(i) + bound(i + 1)) / 2.0F;
      out.push_back(static_cast<double>(scale * mean));
      if (both) out.push_back(-static_cast<double>(scale * mean));
    }
  }
  out.resize(256, 0.0);
  std::sort(out.begin(), out.end());
  std::array<float, 256> values{};
  std::transform(out.begin(), out.end(), values.begin(), [](double value) {
    return static_cast<float>(value);
  });
  return values;
}

void check_sizes(std::size_t numbers, std::size_t block, std::size_t codes, std::size_t scales) {
  TESSERA_ASSERT(block > 0 && codes == numbers && scales == (numbers + block - 1) / block);
}

float largest_magnitude(std::span<const float> x) {
  float largest = 0.0F;
  for (const float value : x)
    largest = std::max(largest, std::abs(value));
  return largest;
}

void encode_with(std::span<const float> x,
                 float scale,
                 const DynamicMap& map,
                 std::span<std::uint8_t> codes) {
  const float inverse = 1.0F / std::max(scale, kSmallestScale);
  for (std::size_t i = 0; i < x.size(); ++i)
    codes[i] = map.code_of(std::clamp(x[i] * inverse, -1.0F, 1.0F));
}

bool decodes_to(std::span<const std::uint8_t> codes,
                float scale,
                const DynamicMap& map,
                std::span<const float> x) {
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (map.values()[codes[i]] * scale != x[i]) return false;
  }
  return true;
}

/// Scales with which the block may have been decoded: its largest magnitude is that of one of the
/// table's ends.
std::vector<float> scales_of(float largest, const DynamicMap& map) {
  std::vector<float> out = {largest};
  const float end = std::abs(map.values().front());
  if (end == 0.0F || largest == 0.0F) return out;
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

DynamicMap::DynamicMap(bool both) : values_(dynamic_values(both)) {
  for (std::size_t i = 0; i + 1 < values_.size(); ++i)
    midpoints_[i] = (values_[i] + values_[i + 1]) / 2.0F;
  midpoints_.back() = std::numeric_limits<float>::infinity();
  for (std::size_t negative = 0; negative < 2; ++negative) {
    for (std::size_t step = 0; step < kSteps; ++step) {
      // The lowest number of the step; for negative numbers this is the largest magnitude.
      const auto bits = static_cast<std::uint32_t>(step) << kShift;
      const float smallest = std::bit_cast<float>(bits),
                  largest = std::bit_cast<float>(bits | ((1U << kShift) - 1U));
      const float lowest = negative == 0 ? smallest : -largest;
      const auto at = std::lower_bound(midpoints_.begin(), midpoints_.end(), lowest);
      first_[negative][step] = static_cast<std::uint8_t>(at - midpoints_.begin());
    }
  }
}

const DynamicMap& DynamicMap::positive() {
  static const DynamicMap map(/*both=*/false);
  return map;
}

const DynamicMap& DynamicMap::both() {
  static const DynamicMap map(/*both=*/true);
  return map;
}

std::uint8_t DynamicMap::code_of(float x) const {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::size_t step = std::min<std::size_t>((bits & 0x7fffffffU) >> kShift, kSteps - 1);
  const std::uint8_t code = first_[bits >> 31][step];
  return static_cast<std::uint8_t>(code + static_cast<int>(x > midpoints_[code]));
}

void encode_blocks(std::span<const float> x, std::size_t block, const DynamicMap& map, Codes8 to) {
  check_sizes(x.size(), block, to.codes.size(), to.scales.size());
  for (std::size_t b = 0; b < to.scales.size(); ++b) {
    const auto part = x.subspan(b * block, std::min(block, x.size() - b * block));
    to.scales[b] = largest_magnitude(part);
    encode_with(part, to.scales[b], map, to.codes.subspan(b * block, part.size()));
  }
}

void encode_blocks_again(std::span<const float> x,
                         std::size_t block,
                         const DynamicMap& map,
                         Codes8 to) {
  check_sizes(x.size(), block, to.codes.size(), to.scales.size());
  for (std::size_t b = 0; b < to.scales.size(); ++b) {
    const auto part = x.subspan(b * block, std::min(block, x.size() - b * block));
    const auto codes = to.codes.subspan(b * block, part.size());
    const float largest = largest_magnitude(part);
    bool found = false;
    for (const float scale : scales_of(largest, map)) {
      encode_with(part, scale, map, codes);
      to.scales[b] = scale;
      found = decodes_to(codes, scale, map, part);
      if (found) break;
    }
    if (found) continue;
    encode_with(part, largest, map, codes);
    to.scales[b] = largest;
  }
}

void decode_blocks(std::span<const std::uint8_t> codes,
                   std::span<const float> scales,
                   std::size_t block,
                   std::span<const float, 256> values,
                   std::span<float> to) {
  check_sizes(to.size(), block, codes.size(), scales.size());
  for (std::size_t b = 0; b < scales.size(); ++b) {
    const float scale = scales[b];
    const std::size_t end = std::min(to.size(), (b + 1) * block);
    for (std::size_t i = b * block; i < end; ++i)
      to[i] = values[codes[i]] * scale;
  }
}

}  // namespace tessera
