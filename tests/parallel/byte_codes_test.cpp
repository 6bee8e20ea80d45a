// SPDX-License-Identifier: Apache-2.0
// Values in 8 bits, against the rows of 8-bit matrices, which have the same rule.
#include "tessera/parallel/byte_codes.h"

#include <limits>
#include <optional>
#include <string>
#include <vector>

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

/// Ranks send gradients that do not change `calls` times. Returns the largest error of the mean of
/// their sums, in units of the largest value.
double error_of_mean(int ranks, int calls, const std::optional<ErrorFeedback>& feedback) {
  const at::Tensor sum = at::zeros({kNumel}, at::kFloat);
  std::vector<at::Tensor> residuals, gradients;
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(5);
  for (int rank = 0; rank < ranks; ++rank) {
    gradients.push_back(at::randn({kNumel}, generator, at::kFloat));
    residuals.push_back(at::zeros({kNumel}, at::kBFloat16));
  }
  at::Tensor wanted = at::zeros({kNumel}, at::kFloat);
  for (int call = 0; call < calls; ++call) {
    for (std::size_t rank = 0; rank < gradients.size(); ++rank) {
      const at::Tensor bytes = at::empty({byte_codes(kNumel)}, at::kByte);
      if (feedback) {
        encode_bytes(gradients[rank], bytes, residuals[rank], *feedback);
      } else {
        encode_bytes(gradients[rank], bytes);
      }
      add_bytes(bytes, sum);
      wanted += gradients[rank];
    }
  }
  return ((sum - wanted).abs().max() / calls / gradients.front().abs().max()).item<double>();
}

TEST(ErrorFeedbackOfByteCodes, MakesTheMeanOfWhatIsSentThatOfTheGradients) {
  for (const int ranks : {1, 2}) {
    SCOPED_TRACE(std::to_string(ranks) + " ranks");
    // Without error feedback the mean keeps the error of one call, at most half a scale for each
    // rank.
    const double alone = error_of_mean(ranks, 1, {});
    EXPECT_NEAR(error_of_mean(ranks, 64, {}), alone, 0.1 * alone);
    for (const float beta : {0.0F, 0.8F}) {
      for (const float scale : {1.0F, 4096.0F}) {
        SCOPED_TRACE(std::to_string(beta) + ", loss scale " + std::to_string(scale));
        const double few = error_of_mean(ranks, 16, ErrorFeedback{beta, scale});
        const double many = error_of_mean(ranks, 256, ErrorFeedback{beta, scale});
        // The sum is off by a residual / (1 - beta), of which a bit more than half a scale is kept.
        const double bound = ranks * 0.6 / 127 / (1 - beta);
        EXPECT_LT(few, bound / 16);
        EXPECT_LT(many, few / 4);
        EXPECT_LT(many, alone / 10);
      }
    }
  }
}

TEST(ErrorFeedbackOfByteCodes, KeepsTheMovingAverageOfWhatIsLost) {
  const at::Tensor values = random_values(), residual = at::full({kNumel}, 0.125F, at::kBFloat16);
  const at::Tensor bytes = at::empty({byte_codes(kNumel)}, at::kByte);

  encode_bytes(values, bytes, residual, {.beta = 0.75F, .scale = 2.0F});

  const at::Tensor sent = values + 0.25;
  EXPECT_TRUE(at::equal(bytes, encoded(sent)));
  const at::Tensor wanted = 0.75 * 0.125 + 0.25 * (sent - decoded(bytes, kNumel)) / 2;
  EXPECT_TRUE(at::allclose(residual.to(at::kFloat), wanted, /*rtol=*/1.0 / 256, /*atol=*/1e-6));
}

TEST(ErrorFeedbackOfByteCodes, OfANonFiniteBlockLeavesTheResidual) {
  at::Tensor values = random_values().narrow(0, 0, 2 * kByteBlock).clone();
  values[3] = std::numeric_limits<float>::infinity();
  const at::Tensor residual = at::full({2 * kByteBlock}, 0.25F, at::kBFloat16);
  const at::Tensor bytes = at::empty({byte_codes(2 * kByteBlock)}, at::kByte);

  encode_bytes(values, bytes, residual, {});

  EXPECT_TRUE(residual.narrow(0, 0, kByteBlock).eq(0.25).all().item<bool>());
  EXPECT_FALSE(residual.narrow(0, kByteBlock, kByteBlock).eq(0.25).any().item<bool>());
  EXPECT_TRUE(at::isfinite(residual).all().item<bool>());
  EXPECT_FALSE(at::isfinite(decoded(bytes, 2 * kByteBlock).narrow(0, 0, 1)).any().item<bool>());
}

TEST(ByteCodes, AreAddedInFp32) {
  const at::Tensor values = random_values(), bytes = encoded(values);
  const at::Tensor sum = at::full({kNumel}, 2.0F);

  add_bytes(bytes, sum);

  EXPECT_TRUE(at::equal(sum, decoded(bytes, kNumel) + 2.0F));
}

}  // namespace
}  // namespace tessera::parallel
