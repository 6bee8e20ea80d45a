// SPDX-License-Identifier: Apache-2.0
// The tables of four and eight bits, compared with a search through all of their numbers.
#include "tessera/base/quant_codes.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/base/philox.h"

namespace tessera {
namespace {

/// Searches all numbers for the nearest one; of two equally near ones, returns the lower.
std::size_t nearest(const std::array<float, 256>& values, float x) {
  std::size_t best = 0;
  for (std::size_t i = 1; i < values.size(); ++i) {
    const double d = std::abs(static_cast<double>(values[i]) - static_cast<double>(x)),
                 so_far = std::abs(static_cast<double>(values[best]) - static_cast<double>(x));
    if (d < so_far) best = i;
  }
  return best;
}

TEST(DynamicMap, HasTheNumbersOfItsPaper) {
  const auto& both = DynamicMap::both().values();
  const auto& positive = DynamicMap::positive().values();

  EXPECT_TRUE(std::is_sorted(both.begin(), both.end()));
  EXPECT_TRUE(std::is_sorted(positive.begin(), positive.end()));
  EXPECT_EQ(both[255], 1.0F);
  EXPECT_EQ(positive[255], 1.0F);
  EXPECT_EQ(both[127], 0.0F);
  EXPECT_EQ(positive[0], 0.0F);
  // Means of neighbouring bounds of [0.1, 1] in 64 or 128 equal parts, and of the single part of
  // the seventh decade.
  EXPECT_NEAR(both[254], 1.0 - 0.9 / 128, 1e-6);
  EXPECT_NEAR(both[0], -(1.0 - 0.9 / 128), 1e-6);
  EXPECT_NEAR(both[128], 0.55e-6, 1e-12);
  EXPECT_NEAR(positive[254], 1.0 - 0.9 / 256, 1e-6);
  EXPECT_NEAR(positive[1], 1e-6 * (0.1 + 0.9 / 4), 1e-12);
  for (std::size_t i = 0; i < 127; ++i)
    EXPECT_EQ(both[i], -both[254 - i]);
}

TEST(DynamicMap, FindsTheNearestNumber) {
  for (const DynamicMap* map : {&DynamicMap::both(), &DynamicMap::positive()}) {
    const float from = map == &DynamicMap::both() ? -1.0F : 0.0F;
    std::vector<float> xs = {from, 0.0F, 1.0F, std::numeric_limits<float>::denorm_min()};
    for (std::uint64_t i = 0; i < 3000; ++i) {
      const auto words = Philox{7}(i);
      const double size = std::pow(10.0, -8.0 * static_cast<double>(uniform_float(words[0])));
      xs.push_back(
          static_cast<float>(size * (words[1] % 2 == 0 ? 1.0 : static_cast<double>(from))));
    }
    for (std::size_t i = 0; i + 1 < 256; ++i) {
      const float middle = (map->values()[i] + map->values()[i + 1]) / 2.0F;
      xs.push_back(std::nextafter(middle, 2.0F));
      xs.push_back(map->values()[i]);
    }
    for (const float x : xs) {
      const auto code = map->code_of(x);
      const double found =
          std::abs(static_cast<double>(map->values()[code]) - static_cast<double>(x));
      const double best = std::abs(static_cast<double>(map->values()[nearest(map->values(), x)]) -
                                   static_cast<double>(x));
      // A midpoint is itself rounded to fp32.
      EXPECT_LE(found, best + 1e-7 * std::abs(static_cast<double>(x))) << x;
    }
  }
}

struct Encoded {
  std::vector<std::uint8_t> codes;
  std::vector<float> scales;
  bool operator==(const Encoded&) const = default;
};

constexpr std::size_t kBlock = 256;

template <class Encode>
Encoded encoded(const std::vector<float>& x, const DynamicMap& map, const Encode& encode) {
  Encoded out;
  out.codes.resize(x.size());
  out.scales.resize((x.size() + kBlock - 1) / kBlock);
  encode(x, kBlock, map, Codes8{out.codes, out.scales});
  return out;
}

std::vector<float> decoded(const Encoded& from, const DynamicMap& map) {
  std::vector<float> out(from.codes.size());
  decode_blocks(from.codes, from.scales, kBlock, map.values(), out);
  return out;
}

std::vector<float> numbers(std::size_t count, bool negative, std::uint64_t seed) {
  std::vector<float> out(count);
  for (std::size_t i = 0; i < count; ++i) {
    const auto words = Philox{seed}(i);
    const float x = uniform_float(words[0]) * std::exp(-8.0F * uniform_float(words[1]));
    out[i] = negative && words[2] % 2 == 0 ? -x : x;
  }
  return out;
}

TEST(EncodeBlocks, KeepsTheLargestMagnitudeAndIsOffByLittle) {
  const std::vector<float> x = numbers(1000, /*negative=*/true, 1);
  const DynamicMap& map = DynamicMap::both();

  const Encoded narrow = encoded(x, map, encode_blocks);
  const std::vector<float> wide = decoded(narrow, map);

  ASSERT_EQ(narrow.scales.size(), 4U);
  for (std::size_t b = 0; b < 4; ++b) {
    float largest = 0;
    for (std::size_t i = b * kBlock; i < std::min(x.size(), (b + 1) * kBlock); ++i)
      largest = std::max(largest, std::abs(x[i]));
    EXPECT_EQ(narrow.scales[b], largest);
  }
  // Half of the largest gap, which is the one below 1.
  for (std::size_t i = 0; i < x.size(); ++i)
    EXPECT_LE(std::abs(wide[i] - x[i]), narrow.scales[i / kBlock] * 0.9F / 128 + 1e-7F);
}

TEST(EncodeBlocks, OfZerosAreZeros) {
  for (const DynamicMap* map : {&DynamicMap::both(), &DynamicMap::positive()}) {
    const Encoded narrow = encoded(std::vector<float>(300, 0.0F), *map, encode_blocks);
    EXPECT_EQ(decoded(narrow, *map), std::vector<float>(300, 0.0F));
  }
}

TEST(EncodeBlocksAgain, GivesWhatWasDecoded) {
  for (const DynamicMap* map : {&DynamicMap::both(), &DynamicMap::positive()}) {
    for (std::uint64_t seed = 0; seed < 50; ++seed) {
      const std::vector<float> x =
          numbers(kBlock * 3 + 17, /*negative=*/map == &DynamicMap::both(), seed);
      const std::vector<float> wide = decoded(encoded(x, *map, encode_blocks), *map);

      const Encoded again = encoded(wide, *map, encode_blocks_again);

      EXPECT_EQ(decoded(again, *map), wide) << seed;
    }
  }
}

TEST(EncodeBlocksAgain, EncodesOtherNumbersAsUsual) {
  const std::vector<float> x = numbers(700, /*negative=*/true, 3);

  EXPECT_EQ(encoded(x, DynamicMap::both(), encode_blocks_again),
            encoded(x, DynamicMap::both(), encode_blocks));
}

}  // namespace
}  // namespace tessera
