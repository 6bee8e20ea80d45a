// SPDX-License-Identifier: Apache-2.0
// Four bits a number: torchao's tables, the nearest number, and saving without a change.
#include "tessera/base/four_bit_codes.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/base/philox.h"

namespace tessera {
namespace {

constexpr std::size_t kFourBitBlock = 128;

struct FourBits {
  std::vector<std::uint8_t> codes;
  std::vector<float> scales;
};

template <class Encode>
FourBits four_bits_of(const std::vector<float>& x, const FourBitMap& map, const Encode& encode) {
  FourBits out;
  out.codes.resize((x.size() + 1) / 2);
  out.scales.resize((x.size() + kFourBitBlock - 1) / kFourBitBlock);
  encode(x, kFourBitBlock, map, Codes4{out.codes, out.scales});
  return out;
}

std::vector<float> numbers_of(const FourBits& from, std::size_t count, const FourBitMap& map) {
  std::vector<float> out(count);
  decode_four_bits(from.codes, from.scales, kFourBitBlock, map.values(), out);
  return out;
}

std::vector<float> spread_numbers(std::size_t count, bool negative, std::uint64_t seed) {
  std::vector<float> out(count);
  for (std::size_t i = 0; i < count; ++i) {
    const auto words = Philox{seed}(i);
    const float x = uniform_float(words[0]) * std::exp(-8.0F * uniform_float(words[1]));
    out[i] = negative && words[2] % 2 == 0 ? -x : x;
  }
  return out;
}

TEST(FourBitMap, HasTheNumbersOfTorchao) {
  // get_qmap_signed() and get_qmap_unsigned() of torchao 0.18.
  const std::vector<float> both = {-0.887499988F,
                                   -0.662500024F,
                                   -0.4375F,
                                   -0.212499991F,
                                   -0.0775000006F,
                                   -0.0325000025F,
                                   -0.00549999997F,
                                   0.0F,
                                   0.00549999997F,
                                   0.0325000025F,
                                   0.0775000006F,
                                   0.212499991F,
                                   0.4375F,
                                   0.662500024F,
                                   0.887499988F,
                                   1.0F};
  for (std::size_t i = 0; i < 16; ++i) {
    EXPECT_FLOAT_EQ(FourBitMap::both().values()[i], both[i]);
    EXPECT_EQ(FourBitMap::positive().values()[i], static_cast<float>(i + 1) / 16.0F);
  }
}

TEST(FourBitMap, FindsTheNearestNumberAndTheUpperOfTwo) {
  for (const FourBitMap* map : {&FourBitMap::both(), &FourBitMap::positive()}) {
    for (const float x : spread_numbers(2000, /*negative=*/map == &FourBitMap::both(), 5)) {
      float best = 2.0F;
      for (const float value : map->values())
        best = std::min(best, std::abs(value - x));
      EXPECT_NEAR(std::abs(map->values()[map->code_of(x)] - x), best, 1e-7F) << x;
    }
  }
  EXPECT_EQ(FourBitMap::positive().code_of(0.09375F), 1);  // the middle of 1/16 and 2/16
}

TEST(FourBitCodes, HoldTwoNumbersAByteWithTheFirstOneInTheUpperHalf) {
  const FourBits narrow =
      four_bits_of({0.5F, 1.0F, 0.125F}, FourBitMap::positive(), encode_four_bits);

  EXPECT_EQ(narrow.codes, (std::vector<std::uint8_t>{7 << 4 | 15, 1 << 4}));
  EXPECT_EQ(narrow.scales, std::vector<float>{1.0F});
}

TEST(FourBitCodes, AreDecodedToTheSameNumbersAfterSaving) {
  for (const FourBitMap* map : {&FourBitMap::both(), &FourBitMap::positive()}) {
    for (std::uint64_t seed = 0; seed < 50; ++seed) {
      std::vector<float> x =
          spread_numbers(kFourBitBlock * 3 + 17, /*negative=*/map == &FourBitMap::both(), seed);
      std::fill_n(x.begin() + kFourBitBlock, kFourBitBlock, 0.0F);
      for (std::size_t i = 2 * kFourBitBlock; i < 3 * kFourBitBlock; ++i)
        x[i] *= 1e-13F;
      const std::vector<float> wide =
          numbers_of(four_bits_of(x, *map, encode_four_bits), x.size(), *map);

      const FourBits again = four_bits_of(wide, *map, encode_four_bits_again);

      EXPECT_EQ(numbers_of(again, x.size(), *map), wide) << seed;
    }
    const std::vector<float> zeros(300, 0.0F);  // as states begin
    EXPECT_EQ(numbers_of(four_bits_of(zeros, *map, encode_four_bits_again), 300, *map), zeros);
  }
}

}  // namespace
}  // namespace tessera
