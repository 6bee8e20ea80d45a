// SPDX-License-Identifier: Apache-2.0
// labels: fast
// The layout never changes the mathematics: data-parallel size, accumulation and ZeRO stage give
// the same bits.
#include <cmath>
#include <string>
#include <vector>

#include "equivalence/within_rounding.h"
#include "support/train_runs.h"
#include <gtest/gtest.h>

namespace tessera::test {
namespace {

constexpr std::int64_t kSteps = 6;

/// 1 x 4, 2 x 2, 4 x 1 ranks x accumulation with stages 0 and 1, against one rank and stage 0.
void expect_all_layouts_equal(const TinyRun& run) {
  const Trace reference = run.train({.ranks = 1, .accumulation = 4, .stage = 0}, kSteps);
  ASSERT_EQ(reference.losses.size(), static_cast<std::size_t>(kSteps));
  for (const int stage : {0, 1}) {
    for (const int ranks : {1, 2, 4}) {
      SCOPED_TRACE("stage " + std::to_string(stage) + " ranks " + std::to_string(ranks));
      expect_same_bits(
          reference,
          run.train({.ranks = ranks, .accumulation = 4 / ranks, .stage = stage}, kSteps));
    }
  }
}

TEST(Layouts, RanksTimesAccumulationGiveTheSameBitsWithDropout) {
  expect_all_layouts_equal(TinyRun());
}

TEST(Layouts, TheSameInBf16) {
  TinyRun run;
  run.set("bf16.enabled", "true");

  expect_all_layouts_equal(run);
}

TEST(Layouts, TheSameInFp16) {
  TinyRun run;
  run.set("fp16.enabled", "true");

  expect_all_layouts_equal(run);
}

TEST(Layouts, TheSameWithUntiedHeadAndLabelSmoothing) {
  TinyRun run;
  run.set("model.tie_embeddings", "false")
      .set("model.label_smoothing", "0.1")
      .set("model.qkv_bias", "false");

  expect_all_layouts_equal(run);
}

TEST(Layouts, TheSameOnPaddedDocumentsAndAShortLastBatch) {
  TinyRun run;
  run.use_padded_documents();

  expect_all_layouts_equal(run);
}

TEST(Layouts, AStepThatRunsTwiceGivesTheSameBits) {
  const TinyRun run;
  const Layout layout{.ranks = 2, .accumulation = 1};

  expect_same_bits(run.train(layout, kSteps), run.train(layout, kSteps));
}

TEST(Layouts, TheSeedMatters) {
  const TinyRun run;
  TinyRun other;
  other.set("trainer.seed", "6");

  EXPECT_NE(run.train({}, 2).losses, other.train({}, 2).losses);
}

// fp32 sums in another order: the bounds that the design promises for another micro-batch size.
constexpr double kLossTolerance = 2e-5;
constexpr double kGradientTolerance = 2e-6;

TEST(MicroBatchSize, KeepsTheLossWithinRounding) {
  TinyRun run;
  run.set("model.dropout", "0");
  const Trace by_two = run.train({.ranks = 1, .accumulation = 4, .micro_batch = 2}, 10);

  const Trace by_eight = run.train({.ranks = 1, .accumulation = 1, .micro_batch = 8}, 10);
  const Trace by_four = run.train({.ranks = 2, .accumulation = 1, .micro_batch = 4}, 10);

  for (std::size_t i = 0; i < by_two.losses.size(); ++i) {
    EXPECT_NEAR(by_eight.losses[i], by_two.losses[i], kLossTolerance * by_two.losses[i]);
    EXPECT_NEAR(by_four.losses[i], by_two.losses[i], kLossTolerance * by_two.losses[i]);
  }
}

TEST(MicroBatchSize, KeepsTheFirstGradientWithinRounding) {
  TinyRun run;
  run.set("model.dropout", "0").set("gradient_clipping", "0");
  const auto reference = run.first_gradient({.ranks = 1, .accumulation = 4, .micro_batch = 2});
  double whole = 0;
  for (const auto& [name, values] : reference)
    whole += norm(values) * norm(values);
  whole = std::sqrt(whole);

  const auto other = run.first_gradient({.ranks = 1, .accumulation = 1, .micro_batch = 8});

  ASSERT_EQ(reference.size(), other.size());
  for (std::size_t t = 0; t < reference.size(); ++t) {
    std::vector<float> difference = other[t].second;
    for (std::size_t i = 0; i < difference.size(); ++i)
      difference[i] -= reference[t].second[i];
    // A tensor whose gradient is zero in theory (key biases) is noise: the floor is a thousandth of
    // the whole gradient.
    EXPECT_LE(norm(difference),
              kGradientTolerance * std::max(norm(reference[t].second), 1e-3 * whole))
        << reference[t].first;
  }
}

}  // namespace
}  // namespace tessera::test
