// SPDX-License-Identifier: Apache-2.0
// The curves that follow from measured operations.
#include <vector>

#include <gtest/gtest.h>

#include "tessera/tune/measure_machine.h"

namespace tessera::tune {
namespace {

TEST(MeasuredRates, AreTheMediansOfHalfDecadesAsSharesOfThePeak) {
  std::vector<ops::OpRow> rows;
  for (const double seconds : {1.0, 2.0, 4.0})
    rows.push_back(
        {.calls = 10, .seconds = seconds, .flops = 1e7, .shape_class = ShapeClass::LargeProduct});
  rows.push_back({.calls = 1, .seconds = 1, .flops = 9e7, .shape_class = ShapeClass::LargeProduct});
  rows.push_back({.calls = 1, .seconds = 1, .flops = 1e9, .shape_class = ShapeClass::Attention});

  const predict::Curve curve = efficiency_of(rows, ShapeClass::LargeProduct, DType::F32, 1e8);

  ASSERT_EQ(curve.points.size(), 2U);
  EXPECT_NEAR(curve.points[0].first, 1e6, 1) << "FLOPs of a call";
  EXPECT_DOUBLE_EQ(curve.points[0].second, 5e6 / 1e8);
  EXPECT_DOUBLE_EQ(curve.points[1].second, 9e7 / 1e8);
  EXPECT_TRUE(efficiency_of(rows, ShapeClass::LargeProduct, DType::BF16, 1e8).points.empty());
}

TEST(MeasuredRates, OfMemoryAreThoseOfOperationsThatComputeLittle) {
  const std::vector<ops::OpRow> rows = {
      {.calls = 4, .seconds = 2, .bytes = 4e6, .shape_class = ShapeClass::Rows},
      {.calls = 1,
       .seconds = 1,
       .flops = 1,
       .bytes = 1e6,
       .shape_class = ShapeClass::LargeProduct}};

  const predict::Curve curve = memory_efficiency_of(rows, 1e7);

  ASSERT_EQ(curve.points.size(), 1U);
  EXPECT_DOUBLE_EQ(curve.points[0].second, 0.2);
}

}  // namespace
}  // namespace tessera::tune
