// SPDX-License-Identifier: Apache-2.0
#include "tessera/base/dtype.h"

#include <cmath>
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

TEST(Fp16, EveryValueSurvivesTheWayThroughFp32) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const float value = from_fp16(half);

    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(from_fp16(to_fp16(value))));
    } else {
      EXPECT_EQ(to_fp16(value), half);
    }
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
