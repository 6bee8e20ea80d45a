// SPDX-License-Identifier: Apache-2.0
// Values in 8 bits, against the rows of 8-bit matrices, which have the same rule.
#include "tessera/parallel/byte_codes.h"

#include <limits>

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "tessera/ops/int8_rows.h"

namespace tessera::parallel {
namespace {

constexpr std::int64_t kNumel = 70 * kByteBlock;

at::Tensor random_values() {
  return at::randn({kNumel}, at::make_generator<at::CPUGeneratorImpl>(3), at::kFloat);
}

at::Tensor encoded(const at::Tensor& values) {
  at::Tensor bytes = at::empty({byte_codes(values.numel())}, at::kByte);
  encode_bytes(values, bytes);
  return bytes;
}

at::Tensor decoded(const at::Tensor& bytes, std::int64_t numel, at::ScalarType dtype = at::kFloat) {
  at::Tensor out = at::empty({numel}, dtype);
  decode_bytes(bytes, out);
  return out;
}

TEST(ByteCodes, TakeAByteForEachValueAndFourForEachBlock) {
  EXPECT_EQ(byte_codes(2 * kByteBlock), 2 * kByteBlock + 8);
}

TEST(ByteCodes, AreThoseOfMatricesWithARowForEachBlock) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const at::Tensor values = random_values().to(dtype);
    const at::Tensor wanted = ops::from_int8(ops::to_int8(values.view({-1, kByteBlock})), dtype);

    EXPECT_TRUE(at::equal(decoded(encoded(values), kNumel, dtype), wanted.view({-1})));
  }
}

TEST(ByteCodes, AreOffByHalfAScaleAtMost) {
  const at::Tensor values = random_values().view({-1, kByteBlock});
  const at::Tensor error =
      (decoded(encoded(values.view({-1})), kNumel).view_as(values) - values).abs();

  const at::Tensor half = std::get<0>(values.abs().max(1)) / 254;
  EXPECT_TRUE((std::get<0>(error.max(1)) <= half * 1.0001).all().item<bool>());
}

TEST(ByteCodes, OfZerosAreZeros) {
  const at::Tensor zeros = at::zeros({kByteBlock}, at::kFloat);
  EXPECT_TRUE(at::equal(decoded(encoded(zeros), kByteBlock), zeros));
}

TEST(ByteCodes, PassNonFiniteValuesOn) {
  for (const float bad :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    at::Tensor values = random_values().narrow(0, 0, 2 * kByteBlock).clone();
    values[7] = bad;
    const at::Tensor out = decoded(encoded(values), 2 * kByteBlock);

    EXPECT_FALSE(at::isfinite(out.narrow(0, 0, kByteBlock)).any().item<bool>());
    EXPECT_TRUE(at::isfinite(out.narrow(0, kByteBlock, kByteBlock)).all().item<bool>());
  }
}

TEST(ByteCodes, AreAddedInFp32) {
  const at::Tensor values = random_values(), bytes = encoded(values);
  const at::Tensor sum = at::full({kNumel}, 2.0F);

  add_bytes(bytes, sum);

  EXPECT_TRUE(at::equal(sum, decoded(bytes, kNumel) + 2.0F));
}

}  // namespace
}  // namespace tessera::parallel
