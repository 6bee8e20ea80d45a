// SPDX-License-Identifier: Apache-2.0
// labels: slow
// Optimizers that exchange signs in every precision, recomputed or not, with one micro-batch and
// with two, on 2, 3 and 4 ranks: stages 0 and 1 agree to the bit.
#include <cstdint>
#include <string>
#include <tuple>

#include "support/train_runs.h"
#include <gtest/gtest.h>

namespace tessera::test {
namespace {

/// Signs from the fourth update on.
constexpr std::int64_t kSteps = 6;
constexpr const char* kFreeze = R"("freeze_step": 3)";
constexpr const char* kFreezeVariance =
    R"("var_freeze_step": 3, "var_update_scaler": 1, "local_step_scaler": 2, "local_step_clipper": 4)";

using Cell = std::tuple<std::string, std::string, std::string>;
class CompressedMatrix : public ::testing::TestWithParam<Cell> {};

TEST_P(CompressedMatrix, GivesTheSameBitsInStages0And1) {
  const auto& [optimizer, precision, recompute] = GetParam();
  TinyRun run;
  run.set("optimizer",
          R"({"type": ")" + optimizer + R"(", "params": {"lr": 1e-3, "eps": 1e-4, )" +
              (optimizer == "ZeroOneAdam" ? kFreezeVariance : kFreeze) + "}}");
  if (precision != "fp32") run.set(precision + ".enabled", "true");
  run.set("activation_checkpointing.granularity", "\"" + recompute + "\"");
  for (const int ranks : {2, 3, 4}) {
    for (const std::int64_t accumulation : {1, 2}) {
      SCOPED_TRACE(std::to_string(ranks) + " ranks, accumulation " + std::to_string(accumulation));
      const auto train = [&](int stage) {
        return run.train({.ranks = ranks, .accumulation = accumulation, .stage = stage}, kSteps);
      };
      const Trace zero = train(0);

      ASSERT_EQ(zero.losses.size(), static_cast<std::size_t>(kSteps));
      EXPECT_EQ(zero.skipped.back(), 0);
      expect_same_bits(zero, train(1));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Registered,
    CompressedMatrix,
    ::testing::Combine(::testing::Values("OneBitAdam", "OneBitLamb", "ZeroOneAdam"),
                       ::testing::Values("fp32", "bf16", "fp16"),
                       ::testing::Values("none", "full")),
    [](const auto& info) {
      return std::get<0>(info.param) + "_" + std::get<1>(info.param) + "_" +
             std::get<2>(info.param);
    });

TEST(CompressedInFp16, SkipsAnOverflowAlikeAndGoesOnWithSigns) {
  for (const std::string optimizer : {"OneBitAdam", "OneBitLamb", "ZeroOneAdam"}) {
    SCOPED_TRACE(optimizer);
    TinyRun run;
    run.set("optimizer",
            R"({"type": ")" + optimizer + R"(", "params": {"lr": 1e-3, "eps": 1e-4, )" +
                (optimizer == "ZeroOneAdam" ? kFreezeVariance : kFreeze) + "}}")
        .set("fp16", R"({"enabled": true, "initial_scale_power": 26, "hysteresis": 1})");
    const auto train = [&](int stage) {
      return run.train({.ranks = 2, .accumulation = 2, .stage = stage}, 12);
    };
    const Trace zero = train(0);

    EXPECT_GT(zero.skipped.back(), 0);
    EXPECT_LT(zero.skipped.back(), 12 - kSteps);
    expect_same_bits(zero, train(1));
  }
}

}  // namespace
}  // namespace tessera::test
