// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/verify.h"

#include <cmath>
#include <string>

#include "support/train_runs.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/Parallel.h>

#include "tessera/base/error.h"
#include "tessera/comm/world.h"
#include "tessera/engine/promise.h"

namespace tessera::engine {
namespace {

using test::Layout;
using test::TinyRun;

constexpr std::int64_t kSteps = 3;

/// The rank's part of trace_layout() on threads of this process.
LayoutTrace trace_of(const planner::Plan& plan, const files::TempDir& folder) {
  prepare_process(1);
  planner::Plan mine = plan;
  planner::Plan keeping =
      planner::make_plan(keeping_gradient(plan.resolved), plan.ranks, "tiny.json");
  const auto data = open_data(mine, {});
  finish_plan(mine, *data);
  finish_plan(keeping, *data);
  comm::run_threads(plan.mesh(), [&](comm::World& world) {
    at::set_num_threads(1);
    EXPECT_EQ(keep_first_gradient(world, keeping, data, folder.path()), kExitOk);
  });
  comm::run_threads(plan.mesh(), [&](comm::World& world) {
    at::set_num_threads(1);
    EXPECT_EQ(train_traced(world, mine, data, kSteps, folder.path()), kExitOk);
  });
  return read_trace(folder.path());
}

Deviations deviations(const planner::Plan& plan) {
  const files::TempDir single, layout;
  const planner::Plan one = planner::make_plan(on_one_rank(plan), 1, "tiny.json");
  return compare_traces(trace_of(one, single), trace_of(plan, layout));
}

TEST(Verify, FindsTheSameBitsInAPipelineOfShardedRanks) {
  const TinyRun run;
  const Deviations found =
      deviations(run.plan({.ranks = 4, .accumulation = 2, .stage = 3, .pipeline = "2"}));

  EXPECT_TRUE(found.same_losses);
  EXPECT_EQ(found.losses.size(), static_cast<std::size_t>(kSteps));
  ASSERT_FALSE(found.tensors.empty());
  for (const TensorDeviation& tensor : found.tensors) {
    EXPECT_TRUE(tensor.gradient.same_bits) << tensor.name;
    EXPECT_TRUE(tensor.weights.same_bits) << tensor.name;
    EXPECT_EQ(tensor.gradient.relative, 0) << tensor.name;
    EXPECT_EQ(tensor.weights.relative, 0) << tensor.name;
  }
}

TEST(Verify, MeasuresTheRoundingOfRanksThatShareLayers) {
  const TinyRun run;
  const planner::Plan plan = run.plan({.ranks = 2, .tensor = 2});
  const Promise promise = promise_of(plan);

  const Deviations found = deviations(plan);

  bool any = false;
  for (const TensorDeviation& tensor : found.tensors) {
    EXPECT_LE(tensor.gradient.relative, promise.gradient) << tensor.name;
    any = any || tensor.gradient.relative > 0;
  }
  EXPECT_TRUE(any) << "sums that are cut elsewhere round elsewhere";
  for (const double loss : found.losses)
    EXPECT_LE(loss, promise.loss);
}

TEST(Verify, SeesAnotherTraining) {
  TinyRun run, other;
  other.set("trainer.seed", "6");
  const files::TempDir first, second;

  const Deviations found =
      compare_traces(trace_of(run.plan({}), first), trace_of(other.plan({}), second));

  EXPECT_FALSE(found.same_losses);
  EXPECT_GT(found.losses[0], 0);
  for (const TensorDeviation& tensor : found.tensors) {
    // Norms begin as ones and zeros whatever the seed is; their gradients do not agree.
    EXPECT_GT(tensor.gradient.relative, 1e-3) << tensor.name;
    EXPECT_FALSE(tensor.weights.same_bits) << tensor.name;
  }
}

TEST(Verify, MeasuresADeviationAgainstAFloor) {
  EXPECT_EQ(deviation_of({3, 4}, {3, 4}, 1.0), 0);
  EXPECT_DOUBLE_EQ(deviation_of({3, 4}, {3, 4.5}, 1.0), 0.1);
  EXPECT_DOUBLE_EQ(deviation_of({0, 0}, {0, 0.5}, 2.0), 0.25);
  EXPECT_TRUE(std::isinf(deviation_of({0}, {NAN}, 1.0)));
  EXPECT_THROW(deviation_of({1}, {1, 2}, 1.0), Error);
}

TEST(Verify, RefusesTracesOfOtherTensors) {
  TinyRun tied, untied;
  untied.set("model.tie_embeddings", "false");
  const files::TempDir first, second;

  EXPECT_THROW(compare_traces(trace_of(tied.plan({}), first), trace_of(untied.plan({}), second)),
               Error);
}

}  // namespace
}  // namespace tessera::engine
