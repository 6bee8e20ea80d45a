// SPDX-License-Identifier: Apache-2.0
// Rows of a table against the whole table.
#include "tessera/tensor/row_sum.h"

#include <cstdint>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

namespace tessera {
namespace {

using ::testing::ElementsAre;

constexpr std::int64_t kWidth = 5;

at::Tensor ids(const std::vector<std::int64_t>& of) {
  return at::tensor(of, at::kLong);
}

TEST(RowSum, HoldsRowsInTheOrderOfTheirFirstTimeAndBeginsThemWithZeros) {
  RowSum sum(kWidth);

  EXPECT_TRUE(at::equal(sum.places(ids({7, 2, 7, 9})), ids({0, 1, 0, 2})));
  EXPECT_TRUE(at::equal(sum.places(ids({2, 4})), ids({1, 3})));

  EXPECT_THAT(sum.rows(), ElementsAre(7, 2, 9, 4));
  EXPECT_TRUE(at::equal(sum.values(), at::zeros({4, kWidth})));
}

TEST(RowSum, KeepsWhatItHoldsWhereItGrows) {
  RowSum sum(kWidth);
  for (std::int64_t row = 0; row < 1000; ++row)
    sum.row(3 * row)[row % kWidth] += static_cast<float>(row);

  const at::Tensor values = sum.values();

  ASSERT_EQ(values.size(0), 1000);
  for (std::int64_t row = 0; row < 1000; ++row) {
    EXPECT_EQ(values[row][row % kWidth].item<float>(), static_cast<float>(row));
    EXPECT_EQ(values[row].abs().sum().item<float>(), static_cast<float>(row));
  }
}

TEST(RowSum, AddsAnotherOne) {
  RowSum sum(1), other(1);
  *sum.row(3) += 1.0F;
  *other.row(8) += 2.0F;
  *other.row(3) += 4.0F;

  sum.add(other);

  EXPECT_THAT(sum.rows(), ElementsAre(3, 8));
  EXPECT_EQ(*sum.row(3), 5.0F);
  EXPECT_EQ(*sum.row(8), 2.0F);
}

// Shards of a flat buffer begin and end within rows.
TEST(RowSum, AddsItsPartOfAnyStretchOfTheTable) {
  constexpr std::int64_t kRows = 300;
  RowSum sum(kWidth);
  at::Tensor table = at::zeros({kRows, kWidth});
  for (std::int64_t row = 0; row < kRows; row += 3) {
    const at::Tensor values = at::randn({kWidth});
    table[row].add_(values);
    const at::Tensor of_row = at::from_blob(sum.row(row), {kWidth});
    of_row.add_(values);
  }
  for (const std::int64_t first : {-7, 0, 1, 13, 1490}) {
    for (const std::int64_t numel : {1, 4, 25, 1000, 1600}) {
      const at::Tensor begun = at::randn({numel}),
                       whole = at::cat({at::zeros({7}), table.flatten(), at::zeros({3000})});

      at::Tensor flat = begun.clone();
      sum.add_to(flat, first);

      EXPECT_TRUE(at::equal(flat, begun + whole.narrow(0, 7 + first, numel)))
          << first << " " << numel;
    }
  }
}

TEST(RowSum, OfNothingAddsNothing) {
  const at::Tensor flat = at::ones({10});

  RowSum(kWidth).add_to(flat, 0);

  EXPECT_TRUE(at::equal(flat, at::ones({10})));
  EXPECT_EQ(RowSum(kWidth).values().sizes(), at::IntArrayRef({0, kWidth}));
}

}  // namespace
}  // namespace tessera
