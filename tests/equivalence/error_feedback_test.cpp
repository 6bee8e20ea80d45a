// SPDX-License-Identifier: Apache-2.0
// labels: slow
// timeout: 300
// Trainings whose ranks add what their gradients lost in 8 bits to their next gradients.
#include <cmath>
#include <string>
#include <vector>

#include "support/host_world.h"
#include "support/train_runs.h"
#include <gtest/gtest.h>

#include "tessera/checkpoint/folders.h"

namespace tessera::test {
namespace {

constexpr std::int64_t kSteps = 4;

TinyRun exact_run() {
  TinyRun run;
  run.set("zero_optimization.stage3_param_persistence_threshold", "0");
  return run;
}

TinyRun feeding_run(const std::string& beta = "0.8", const std::string& reset = "1024") {
  TinyRun run = exact_run();
  run.set("communication_data_type", "\"int8\"")
      .set("zero_optimization.zeropp_loco_param.err_beta", beta)
      .set("zero_optimization.zeropp_loco_param.reset_T", reset);
  return run;
}

/// The mean relative difference of the losses.
double distance(const Trace& a, const Trace& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.losses.size(); ++i)
    sum += std::abs(a.losses[i] - b.losses[i]) / b.losses[i];
  return sum / static_cast<double>(a.losses.size());
}

TEST(ErrorFeedback, GivesTheSameBitsInEveryStage) {
  for (const char* mode : {"each", "once"}) {
    SCOPED_TRACE(mode);
    TinyRun run = feeding_run();
    run.set("gradient_reduction", "\"" + std::string(mode) + "\"");
    const auto train = [&](int stage) {
      return run.train({.ranks = 2, .accumulation = 2, .stage = stage}, kSteps);
    };
    const Trace first = train(0), third = train(2);

    expect_same_bits(first, train(1));
    expect_same_bits(third, train(3));
    // A rank of "once" rounds its sum in stages 0 and 1, and every gradient in the others.
    if (std::string(mode) == "each") expect_same_bits(first, third);
  }
}

TEST(ErrorFeedback, StaysNearTheExactRunAndChangesIt) {
  const Layout layout{.ranks = 2, .accumulation = 2, .stage = 1};
  const Trace exact = exact_run().train(layout, 4 * kSteps);
  TinyRun plain = exact_run();
  const Trace rounded = plain.set("communication_data_type", "\"int8\"").train(layout, 4 * kSteps);
  for (const char* beta : {"0", "0.8"}) {
    SCOPED_TRACE(beta);
    const Trace fed = feeding_run(beta).train(layout, 4 * kSteps);

    EXPECT_NE(fed.losses.back(), rounded.losses.back());
    EXPECT_LT(distance(fed, exact), 0.01);
  }
}

/// Without a residual to add, the first gradient is that of plain rounding.
TEST(ErrorFeedback, BeginsAgainAfterEveryReset) {
  const Layout layout{.ranks = 2, .accumulation = 1, .stage = 1};
  TinyRun plain = exact_run();
  plain.set("communication_data_type", "\"int8\"");

  const Trace rounded = plain.train(layout, kSteps);
  const Trace fed = feeding_run("0.8", "1").train(layout, kSteps);

  // The checkpoints differ in the residuals.
  EXPECT_EQ(fed.losses, rounded.losses);
  EXPECT_EQ(fed.grad_norms, rounded.grad_norms);
  EXPECT_EQ(fed.eval_losses, rounded.eval_losses);
}

TEST(ErrorFeedback, OfOneRankGoesFromOneMicroBatchToTheNext) {
  const Layout layout{.ranks = 1, .accumulation = 4, .stage = 1};
  TinyRun plain = exact_run();
  plain.set("communication_data_type", "\"int8\"");

  const Trace rounded = plain.train(layout, kSteps), fed = feeding_run().train(layout, kSteps);

  EXPECT_NE(fed.losses.back(), rounded.losses.back());
  EXPECT_LT(distance(fed, rounded), 0.01);
}

TEST(ErrorFeedback, ResumesToTheBit) {
  for (const char* precision : {"", "bf16.enabled", "fp16.enabled"}) {
    SCOPED_TRACE(precision);
    TinyRun run = feeding_run("0.5");
    if (*precision != '\0') run.set(precision, "true");
    for (const Layout& layout : {Layout{.ranks = 1, .accumulation = 2, .stage = 1},
                                 Layout{.ranks = 2, .accumulation = 2, .stage = 3}}) {
      SCOPED_TRACE(std::to_string(layout.ranks) + " ranks");
      const Trace whole = run.train(layout, 2 * kSteps);
      const files::TempDir folder;
      (void)run.train(layout, kSteps, folder.path());

      const Trace rest = run.train(layout, 2 * kSteps, {}, *checkpoint::newest(folder.path()));
      EXPECT_EQ(rest.digest, whole.digest);
      EXPECT_EQ(rest.losses.back(), whole.losses.back());
    }
  }
}

/// Whoever goes on takes a share of the sum of what was lost.
TEST(ErrorFeedback, ContinuesWithAnotherNumberOfRanks) {
  const TinyRun run = feeding_run();
  const Layout two{.ranks = 2, .accumulation = 2, .stage = 1},
      four{.ranks = 4, .accumulation = 1, .stage = 3};
  const Trace whole = run.train(two, 2 * kSteps);
  const files::TempDir folder;
  (void)run.train(two, kSteps, folder.path());

  const Trace rest = run.train(four, 2 * kSteps, {}, *checkpoint::newest(folder.path()));

  EXPECT_NEAR(rest.losses.back(), whole.losses.back(), 0.01 * whole.losses.back());
}

TEST(ErrorFeedback, HasTheSameBitsOnTwoHosts) {
  const Layout layout{.ranks = 4, .accumulation = 1, .stage = 1};
  TinyRun apart = feeding_run();
  const Trace together = apart.train(layout, kSteps);
  const OnTwoHosts hosts;

  expect_same_bits(together, apart.use_world(hosts).train(layout, kSteps));
}

TEST(ErrorFeedback, GoesWithAPipelineAndATiedTable) {
  const TinyRun run = feeding_run();
  const Layout layout{.ranks = 4, .accumulation = 2, .stage = 1, .pipeline = "2"};
  const Trace whole = run.train(layout, 2 * kSteps);
  const files::TempDir folder;
  (void)run.train(layout, kSteps, folder.path());

  const Trace rest = run.train(layout, 2 * kSteps, {}, *checkpoint::newest(folder.path()));
  EXPECT_EQ(rest.digest, whole.digest);
}

}  // namespace
}  // namespace tessera::test
