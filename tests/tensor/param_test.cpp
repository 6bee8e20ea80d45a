// SPDX-License-Identifier: Apache-2.0
#include "tessera/tensor/param.h"

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "tessera/tensor/dtype.h"

namespace tessera {
namespace {

TEST(GradSink, OverwritesOnceAndThenAdds) {
  GradSink sink;
  sink.open(at::full({2, 3}, 7.0F));

  sink.write(at::full({2, 3}, 1.0F));
  sink.write(at::full({2, 3}, 0.5F, at::kBFloat16));

  EXPECT_TRUE(at::equal(sink.out(), at::full({2, 3}, 1.5F)));
}

TEST(GradSink, ClosesWithZerosWhereNobodyWrote) {
  GradSink sink;
  sink.open(at::full({4}, 7.0F));

  sink.close();

  EXPECT_TRUE(at::equal(sink.out(), at::zeros({4})));
}

TEST(GradSink, KeepsWhatWasWrittenWhenItCloses) {
  GradSink sink;
  sink.open(at::full({4}, 7.0F));
  sink.write(at::full({4}, 2.0F));

  sink.close();

  EXPECT_TRUE(at::equal(sink.out(), at::full({4}, 2.0F)));
}

TEST(ParamInfo, DecaysWithTwoOrMoreMatrixDimensions) {
  ParamInfo bias;
  bias.shape = {3, 4, 8};
  bias.matrix_shape = {96};
  ParamInfo weight;
  weight.shape = {3, 4, 8, 32};
  weight.matrix_shape = {96, 32};

  EXPECT_FALSE(decays(bias));
  EXPECT_TRUE(decays(weight));
}

TEST(TorchDtype, ConvertsEveryTypeThereAndBack) {
  for (int i = 0; i <= static_cast<int>(DType::Bool); ++i) {
    const DType dtype = static_cast<DType>(i);

    EXPECT_EQ(from_torch(to_torch(dtype)), dtype);
    EXPECT_EQ(c10::elementSize(to_torch(dtype)), size_of(dtype));
  }
}

}  // namespace
}  // namespace tessera
