// SPDX-License-Identifier: Apache-2.0
#include "tessera/base/dtype.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include <gtest/gtest.h>

namespace tessera {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(DTypes, AreFoundByTheirOwnNames) {
  for (int i = 0; i <= static_cast<int>(DType::Bool); ++i) {
    const auto dtype = static_cast<DType>(i);

    EXPECT_EQ(dtype_from_name(name(dtype)), dtype);
    EXPECT_GT(size_of(dtype), 0U);
  }
  EXPECT_EQ(dtype_from_name("F8"), std::nullopt);
}

/// Returns the value of a finite fp16 number by definition: sign, five exponent bits, ten
/// significand bits.
double meaning(std::uint16_t half) {
  const int exponent = (half >> 10) & 31, significand = half & 1023;
  const double size =
      exponent == 0 ? std::ldexp(significand, -24) : std::ldexp(1024 + significand, exponent - 25);
  return (half & 0x8000) != 0 ? -size : size;
}

std::uint32_t bits_of(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}

TEST(Fp16, EveryPatternMeansWhatItsFieldsSay) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const float value = from_fp16(half);
    const bool finite = (bits & 0x7c00) != 0x7c00;

    if (finite) {
      ASSERT_EQ(value, meaning(half)) << bits;
      ASSERT_EQ(std::signbit(value), bits >= 0x8000) << bits;
    } else if ((bits & 0x3ff) == 0) {
      ASSERT_EQ(value, bits < 0x8000 ? kInfinity : -kInfinity) << bits;
    } else {
      // The result is quiet, with the other bits of the significand unchanged.
      ASSERT_EQ(bits_of(value), ((bits & 0x8000) << 16) | 0x7fc00000U | ((bits & 0x3ff) << 13));
    }
  }
}

TEST(Fp16, EveryValueSurvivesTheWayThroughFp32) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const bool nan = (bits & 0x7c00) == 0x7c00 && (bits & 0x3ff) != 0;

    ASSERT_EQ(to_fp16(from_fp16(half)), nan ? bits | 0x200 : bits);
  }
}

// For each two neighbours, subnormals included: their midpoint, its neighbours in fp32, and both
// values.
TEST(Fp16, RoundsToTheNearerNeighbourAndTiesToTheEvenOne) {
  for (std::uint16_t below = 0; below < 0x7c00; ++below) {
    const auto above = static_cast<std::uint16_t>(below + 1);
    const double low = meaning(below), high = above < 0x7c00 ? meaning(above) : 65536.0;
    const auto middle = static_cast<float>((low + high) / 2);
    ASSERT_EQ(middle, (low + high) / 2) << "the midpoint is exact in fp32";
    const std::uint16_t even = (below & 1) == 0 ? below : above;

    for (const float sign : {1.0F, -1.0F}) {
      const auto rounded = [&](float value) {
        return to_fp16(sign * value) ^ (sign < 0 ? 0x8000 : 0);
      };
      ASSERT_EQ(rounded(static_cast<float>(low)), below);
      ASSERT_EQ(rounded(std::nextafter(static_cast<float>(low), kInfinity)), below);
      ASSERT_EQ(rounded(std::nextafter(middle, 0.0F)), below);
      ASSERT_EQ(rounded(middle), even);
      ASSERT_EQ(rounded(std::nextafter(middle, kInfinity)), above);
      ASSERT_EQ(rounded(std::nextafter(static_cast<float>(high), 0.0F)), above);
    }
  }
}

TEST(Fp16, EveryFiniteFloatGoesToANearestNumberOrToInfinity) {
  // A prime step through all bit patterns of fp32.
  for (std::uint64_t pattern = 0; pattern < (1ULL << 32); pattern += 2521) {
    const auto bits = static_cast<std::uint32_t>(pattern);
    float value;
    std::memcpy(&value, &bits, 4);
    if (!std::isfinite(value)) continue;
    const std::uint16_t half = to_fp16(value);
    const double size = std::abs(static_cast<double>(value));

    ASSERT_EQ((half & 0x8000) != 0, std::signbit(value)) << value;
    if (size >= 65520.0) {
      ASSERT_EQ(half & 0x7fff, 0x7c00) << value;
      continue;
    }
    const int found = half & 0x7fff;
    const auto away = [&](int other) {
      return std::abs(meaning(static_cast<std::uint16_t>(other)) - size);
    };
    ASSERT_LE(away(found), away(std::max(found - 1, 0))) << value;
    ASSERT_LE(away(found), away(std::min(found + 1, 0x7bff))) << value;
  }
}

TEST(Fp16, NanStaysNanWithItsUpperBits) {
  float value;
  for (const std::uint32_t bits :
       {0x7f800001U, 0x7fbfffffU, 0x7fc00000U, 0xff812345U, 0xffffffffU}) {
    std::memcpy(&value, &bits, 4);

    EXPECT_EQ(to_fp16(value), ((bits >> 16) & 0x8000U) | 0x7e00U | ((bits >> 13) & 0x3ffU));
  }
}

TEST(Fp16, RoundsToNearestEven) {
  EXPECT_EQ(from_fp16(to_fp16(2049.0F)), 2048.0F);  // between 2048 and 2050: the even significand
  EXPECT_EQ(from_fp16(to_fp16(2051.0F)), 2052.0F);
  EXPECT_EQ(from_fp16(to_fp16(65519.0F)), 65504.0F);
  EXPECT_EQ(from_fp16(to_fp16(65520.0F)), kInfinity);
  EXPECT_EQ(from_fp16(to_fp16(0x1p-25F)), 0.0F);  // half of the smallest: ties to zero
  EXPECT_EQ(from_fp16(to_fp16(0x1.8p-25F)), 0x1p-24F);
  EXPECT_EQ(from_fp16(to_fp16(-kInfinity)), -kInfinity);
}

TEST(Bf16, EveryValueSurvivesTheWayThroughFp32) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = from_bf16(static_cast<std::uint16_t>(bits));

    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(from_bf16(to_bf16(value))));
    } else {
      EXPECT_EQ(to_bf16(value), bits);
    }
  }
}

TEST(Bf16, RoundsToNearestEven) {
  EXPECT_EQ(from_bf16(to_bf16(257.0F)), 256.0F);
  EXPECT_EQ(from_bf16(to_bf16(259.0F)), 260.0F);
  EXPECT_EQ(from_bf16(to_bf16(std::numeric_limits<float>::max())), kInfinity);
  EXPECT_TRUE(std::isnan(from_bf16(to_bf16(std::numeric_limits<float>::quiet_NaN()))));
}

}  // namespace
}  // namespace tessera
