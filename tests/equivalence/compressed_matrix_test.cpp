// SPDX-License-Identifier: Apache-2.0
// labels: slow
// A selection of the matrix of optimizers that exchange signs that contains every pair of values;
// compressed_matrix_whole_test.cpp runs all of it.
#include "equivalence/compressed_matrix.h"

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::test {
namespace {

TEST(CompressedMatrix, GivesTheSameBitsInStages0And1ForEveryPairOfValues) {
  const std::vector<CompressedCell> all = all_compressed_cells(), cells = covering(all);
  ASSERT_EQ(left_out(all, cells, 2), 0U);

  expect_compressed_cells(cells);
}

TEST(CompressedInFp16, SkipsAnOverflowAlikeAndContinuesWithSigns) {
  constexpr std::int64_t kSteps = 12;
  for (const char* optimizer : CompressedCell::kOptimizers) {
    SCOPED_TRACE(optimizer);
    TinyRun run = run_with_signs(optimizer);
    run.set("fp16", R"({"enabled": true, "initial_scale_power": 26, "hysteresis": 1})");
    const auto train = [&](int stage) {
      return run.train({.ranks = 2, .accumulation = 2, .stage = stage}, kSteps);
    };
    const Trace zero = train(0);

    EXPECT_GT(zero.skipped.back(), 0);
    EXPECT_LT(zero.skipped.back(), kSteps - CompressedCell::kSteps);
    expect_same_bits(zero, train(1));
  }
}

}  // namespace
}  // namespace tessera::test
