// SPDX-License-Identifier: Apache-2.0
#include "tessera/comm/reduce.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/comm/copy.h"

namespace tessera::comm {
namespace {

/// Returns values of very different magnitude, so that the order of a sum affects its bits.
float uneven(std::size_t k, std::size_t i) {
  const float sign = (i + k) % 3 == 0 ? -1.0F : 1.0F;
  return sign * std::ldexp(1.0F + static_cast<float>((i * 37 + k * 11) % 101) / 101.0F,
                           static_cast<int>((i * 7 + k * 13) % 25) - 12);
}

std::vector<std::vector<float>> uneven_inputs(std::size_t inputs, std::size_t count) {
  std::vector<std::vector<float>> in(inputs, std::vector<float>(count));
  for (std::size_t k = 0; k < inputs; ++k)
    for (std::size_t i = 0; i < count; ++i)
      in[k][i] = uneven(k, i);
  return in;
}

template <class T>
std::vector<const void*> pointers(const std::vector<std::vector<T>>& in) {
  std::vector<const void*> out;
  for (const auto& values : in)
    out.push_back(values.data());
  return out;
}

TEST(Reduce, AddsFromTheLeftToTheBit) {
  for (const std::size_t inputs : {1U, 2U, 3U, 4U, 5U, 8U, 9U}) {
    for (const std::size_t count : {0U, 1U, 7U, 8U, 1023U, 1024U, 2500U}) {
      const auto in = uneven_inputs(inputs, count);
      std::vector<float> expected = in[0];
      for (std::size_t k = 1; k < inputs; ++k)
        for (std::size_t i = 0; i < count; ++i)
          expected[i] = expected[i] + in[k][i];

      std::vector<float> out(count, -1.0F);
      reduce_arrays(Op::Sum, DType::F32, out.data(), pointers(in), count);

      EXPECT_EQ(out, expected) << inputs << " inputs of " << count;
    }
  }
}

TEST(Reduce, GivesTheSameBitsWhenItWritesPastTheCaches) {
  const std::size_t count = kPastCaches / sizeof(float) + 1001;
  for (const std::size_t inputs : {2U, 3U, 5U}) {
    const auto in = uneven_inputs(inputs, count);
    std::vector<float> expected = in[0];
    for (std::size_t k = 1; k < inputs; ++k)
      for (std::size_t i = 0; i < count; ++i)
        expected[i] = expected[i] + in[k][i];

    std::vector<float> out(count + 8, -1.0F);
    reduce_arrays(Op::Sum, DType::F32, out.data() + 3, pointers(in), count);

    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), out.begin() + 3)) << inputs;
    EXPECT_EQ(out[2], -1.0F);
    EXPECT_EQ(out[count + 3], -1.0F);
    // The output is one of the inputs.
    auto mine = in;
    reduce_arrays(Op::Sum, DType::F32, mine[1].data(), pointers(mine), count);
    EXPECT_TRUE(mine[1] == expected) << inputs << " in place";
  }
  // 16-bit elements at an odd address.
  const std::vector<std::uint16_t> one(kPastCaches, 0x3f80);  // 1.0
  std::vector<std::uint16_t> out(kPastCaches + 1);
  const void* const both[] = {one.data(), one.data()};
  reduce_arrays(Op::Sum, DType::BF16, out.data() + 1, both, kPastCaches);
  EXPECT_EQ(std::count(out.begin() + 1, out.end(), 0x4000), std::ssize(one));  // 2.0
}

TEST(Reduce, DependsOnTheOrderOfTheInputs) {
  const auto in = uneven_inputs(3, 100);
  std::vector<float> forward(100), backward(100);

  reduce_arrays(Op::Sum, DType::F32, forward.data(), pointers(in), 100);
  const std::vector<const void*> reversed = {in[2].data(), in[1].data(), in[0].data()};
  reduce_arrays(Op::Sum, DType::F32, backward.data(), reversed, 100);

  EXPECT_NE(forward, backward);
}

TEST(Reduce, DoesNotDependOnAlignmentOrSplitting) {
  const std::size_t count = 777;
  const auto in = uneven_inputs(3, count);
  std::vector<float> whole(count), pieces(count);
  reduce_arrays(Op::Sum, DType::F32, whole.data(), pointers(in), count);

  for (std::size_t begin = 0; begin < count; begin += 13) {
    const std::size_t n = std::min<std::size_t>(13, count - begin);
    const std::vector<const void*> parts = {
        in[0].data() + begin, in[1].data() + begin, in[2].data() + begin};
    reduce_arrays(Op::Sum, DType::F32, pieces.data() + begin, parts, n);
  }

  EXPECT_EQ(whole, pieces);
}

TEST(Reduce, OutputMayBeAnyOfTheInputs) {
  for (const std::size_t inputs : {2U, 4U, 6U}) {
    for (std::size_t target = 0; target < inputs; ++target) {
      auto in = uneven_inputs(inputs, 1500);
      std::vector<float> expected(1500);
      reduce_arrays(Op::Sum, DType::F32, expected.data(), pointers(in), 1500);

      reduce_arrays(Op::Sum, DType::F32, in[target].data(), pointers(in), 1500);

      EXPECT_EQ(in[target], expected) << inputs << " inputs, output " << target;
    }
  }
}

TEST(Reduce, Bf16IsSummedInFp32AndRoundedOnce) {
  // 256 + 1 + 1 is 258 in bf16; rounding after each addition would stay at 256.
  const std::vector<std::vector<std::uint16_t>> in = {
      {to_bf16(256.0F)}, {to_bf16(1.0F)}, {to_bf16(1.0F)}};
  std::uint16_t out = 0;

  reduce_arrays(Op::Sum, DType::BF16, &out, pointers(in), 1);

  EXPECT_EQ(from_bf16(out), 258.0F);
}

TEST(Reduce, Bf16RoundsLikeTheConversion) {
  std::vector<std::vector<std::uint16_t>> in(2);
  for (std::uint32_t i = 0; i < 65536; ++i) {
    in[0].push_back(static_cast<std::uint16_t>(i));
    in[1].push_back(static_cast<std::uint16_t>(i * 40503U));
  }
  std::vector<std::uint16_t> out(65536);

  reduce_arrays(Op::Sum, DType::BF16, out.data(), pointers(in), out.size());

  for (std::size_t i = 0; i < out.size(); ++i) {
    const float sum = from_bf16(in[0][i]) + from_bf16(in[1][i]);
    if (std::isnan(sum))
      EXPECT_TRUE(std::isnan(from_bf16(out[i]))) << i;
    else
      EXPECT_EQ(out[i], to_bf16(sum)) << i;
  }
}

TEST(Reduce, MaxAndMinKeepNan) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<std::vector<float>> in = {{nan, 1, 2, -0.5F}, {1, nan, 3, -1.0F}};
  std::vector<float> high(4), low(4);

  reduce_arrays(Op::Max, DType::F32, high.data(), pointers(in), 4);
  reduce_arrays(Op::Min, DType::F32, low.data(), pointers(in), 4);

  EXPECT_TRUE(std::isnan(high[0]) && std::isnan(high[1]) && std::isnan(low[0]) &&
              std::isnan(low[1]));
  EXPECT_EQ(high[2], 3.0F);
  EXPECT_EQ(low[3], -1.0F);
}

TEST(Reduce, WrapsIntegersAroundAndOrsBits) {
  const std::vector<std::vector<std::int32_t>> in = {{INT32_MAX, 1}, {1, 4}};
  const std::vector<std::vector<std::uint8_t>> small = {{250, 3}, {10, 8}};
  std::vector<std::int32_t> sum(2), bits(2);
  std::vector<std::uint8_t> bytes(2);

  reduce_arrays(Op::Sum, DType::I32, sum.data(), pointers(in), 2);
  reduce_arrays(Op::BitOr, DType::I32, bits.data(), pointers(in), 2);
  reduce_arrays(Op::Sum, DType::U8, bytes.data(), pointers(small), 2);

  EXPECT_EQ(sum, (std::vector<std::int32_t>{INT32_MIN, 5}));
  EXPECT_EQ(bits[1], 5);
  EXPECT_EQ(bytes, (std::vector<std::uint8_t>{4, 11}));
}

TEST(Reduce, RejectsUnsupportedTypes) {
  float value = 1;
  const std::vector<const void*> in = {&value, &value};

  EXPECT_FALSE(can_reduce(Op::BitOr, DType::F32));
  EXPECT_FALSE(can_reduce(Op::Sum, DType::F16));
  EXPECT_THROW(reduce_arrays(Op::BitOr, DType::F32, &value, in, 1), Error);
}

TEST(ReduceInPlace, WritesTheSumToEveryBuffer) {
  for (const std::size_t buffers : {1U, 2U, 3U, 6U}) {
    auto in = uneven_inputs(buffers, 3001);
    std::vector<float> expected(3001);
    reduce_arrays(Op::Sum, DType::F32, expected.data(), pointers(in), 3001);
    std::vector<void*> places;
    for (auto& values : in)
      places.push_back(values.data());

    reduce_in_place(Op::Sum, DType::F32, places, 3001);

    for (const auto& values : in)
      EXPECT_EQ(values, expected) << buffers;
  }
}

}  // namespace
}  // namespace tessera::comm
