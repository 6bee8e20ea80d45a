// SPDX-License-Identifier: Apache-2.0
#include "tessera/tensor/param.h"

#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "tessera/tensor/dtype.h"
#include "tessera/tensor/row_sum.h"

namespace tessera {
namespace {

TEST(GradSink, OverwritesOnceAndThenAdds) {
  GradSink sink;
  sink.open(at::full({2, 3}, 7.0F));

  sink.write(at::full({2, 3}, 1.0F));
  sink.write(at::full({2, 3}, 0.5F, at::kBFloat16));
  sink.write(at::full({2, 3}, 0.25F, at::kHalf));

  EXPECT_TRUE(at::equal(sink.out(), at::full({2, 3}, 1.75F)));
}

TEST(GradSink, KeepsWhatAnFp16GradientOverflowedTo) {
  GradSink sink;
  sink.open(at::empty({3}, at::kFloat));

  sink.write(at::full({3}, std::numeric_limits<float>::infinity()).to(at::kHalf));
  sink.write(at::full({3}, 65504.0F).to(at::kHalf));

  EXPECT_TRUE(at::isinf(sink.out()).all().item<bool>());
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

TEST(GradSink, KeepsTheGradientsOfSeveralSourcesApart) {
  GradSink sink;
  sink.open({at::full({2}, 7.0F), at::full({2}, 7.0F), at::full({2}, 7.0F)}, /*holds=*/false);

  ASSERT_EQ(sink.slices(), 3);
  sink.out(1).fill_(2.0);
  sink.written(1);
  EXPECT_FALSE(sink.accumulate(0));
  EXPECT_TRUE(sink.accumulate(1));
  sink.close();

  EXPECT_TRUE(at::equal(sink.out(0), at::zeros({2})));
  EXPECT_TRUE(at::equal(sink.out(1), at::full({2}, 2.0F)));
  EXPECT_TRUE(at::equal(sink.out(2), at::zeros({2})));
}

/// A sink open for rows of a table [4, 2] whose dense form holds garbage.
struct RowsSink {
  RowSum rows{2};
  GradSink sink;
  int asked = 0;
  explicit RowsSink(bool holds = false) {
    const auto make_dense = [this] {
      ++asked;
      return at::full({4, 2}, 7.0F);
    };
    sink.open_rows(rows, make_dense, holds);
  }
};

TEST(GradSink, TakesRowsUntilSomebodyWritesMore) {
  RowsSink table;
  GradSink& sink = table.sink;
  ASSERT_EQ(sink.rows(), &table.rows);
  table.rows.row(2)[1] += 3.0F;
  sink.written();
  EXPECT_EQ(table.asked, 0);

  sink.write(at::ones({4, 2}));

  EXPECT_EQ(sink.rows(), nullptr);
  const at::Tensor expected = at::ones({4, 2});
  expected[2][1] += 3.0F;
  EXPECT_TRUE(at::equal(sink.out(), expected));
  EXPECT_EQ(table.asked, 1);
}

TEST(GradSink, OverwritesWhereNoRowCameBefore) {
  RowsSink table;

  table.sink.write(at::ones({4, 2}));

  EXPECT_TRUE(at::equal(table.sink.out(), at::ones({4, 2})));
}

TEST(GradSink, AddsToRowsOfEarlierMicroBatches) {
  RowsSink table(/*holds=*/true);
  table.rows.row(0)[0] += 3.0F;

  table.sink.write(at::ones({4, 2}));

  const at::Tensor expected = at::ones({4, 2});
  expected[0][0] += 3.0F;
  EXPECT_TRUE(at::equal(table.sink.out(), expected));
}

TEST(GradSink, LeavesRowsAloneWhenItCloses) {
  RowsSink table;

  table.sink.close();
  table.sink.release();

  EXPECT_EQ(table.asked, 0);
  EXPECT_EQ(table.sink.rows(), nullptr);
  EXPECT_FALSE(table.sink.out().defined());
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

// First working weights are libtorch's copies of the masters, later ones our kernels'.
TEST(TorchDtype, RoundsTo16BitsAsOurConversionsDo) {
  std::vector<float> values;
  for (std::uint32_t half = 0; half < 0x7c00; ++half) {
    const float here = from_fp16(static_cast<std::uint16_t>(half)),
                next = half + 1 < 0x7c00 ? from_fp16(static_cast<std::uint16_t>(half + 1)) : 65536;
    const float middle = (here + next) / 2;
    for (const float value :
         {here, middle, std::nextafter(middle, here), std::nextafter(middle, next)}) {
      values.push_back(value);
      values.push_back(-value);
    }
  }
  const at::Tensor wide = at::tensor(values, at::kFloat);

  const at::Tensor half = wide.to(at::kHalf), brain = wide.to(at::kBFloat16);

  const auto* half_bits = static_cast<const std::uint16_t*>(half.data_ptr());
  const auto* brain_bits = static_cast<const std::uint16_t*>(brain.data_ptr());
  for (std::size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(half_bits[i], to_fp16(values[i])) << values[i];
    ASSERT_EQ(brain_bits[i], to_bf16(values[i])) << values[i];
  }
}

}  // namespace
}  // namespace tessera
