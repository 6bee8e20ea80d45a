// SPDX-License-Identifier: Apache-2.0
// Stages that are split by what the blocks cost on this machine.
#include "tessera/engine/profile.h"

#include <string>
#include <vector>

#include "support/train_runs.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/Parallel.h>

#include "tessera/base/error.h"
#include "tessera/engine/batches.h"
#include "tessera/engine/engine.h"
#include "tessera/engine/launch.h"
#include "tessera/parallel/layout.h"
#include "tessera/planner/course.h"
#include "tessera/planner/memory.h"
#include "tessera/planner/model_plan.h"
#include "tessera/planner/plan.h"

namespace tessera::test {
namespace {

constexpr std::uint64_t kMuch = std::uint64_t{1} << 36;

/// Six blocks: a table of 20,000 rows, four equal layers, and a head.
TinyRun run_with_a_large_head() {
  TinyRun run;
  run.set("model.num_layers", "4").set("model.vocab_size", "20000");
  return run;
}

/// A head that is dearer than everything before it, which holds `layer_bytes` a layer.
std::vector<engine::BlockCost> costs_of_a_dear_head(std::int64_t layer_bytes) {
  std::vector<engine::BlockCost> costs(6, {.seconds = 1, .bytes = layer_bytes});
  costs.back().seconds = 9;
  return costs;
}

planner::Plan plan_of(const TinyRun& run) {
  return run.plan(
      {.ranks = 2, .accumulation = 2, .pipeline = R"({"size": 2, "partition": "profile"})"});
}

TEST(MeasuredBlocks, HaveEachATimeAndWhatTheyKeep) {
  engine::prepare_process(1);  // the allocator that counts
  const TinyRun run = run_with_a_large_head();
  const planner::PlanWithData plan(plan_of(run), {});
  const auto data = engine::open_data(plan, {});

  const std::vector<std::int64_t> samples = {0, 1};
  const std::vector<engine::BlockCost> costs =
      engine::measure_blocks(plan.model().resolved.model,
                             plan.layout().working,
                             /*seed=*/5,
                             engine::make_batch(*data->train, samples, samples));

  ASSERT_EQ(costs.size(), plan.model().resolved.model.blocks.size());
  for (const engine::BlockCost& cost : costs) {
    EXPECT_GT(cost.seconds, 0.0);
    EXPECT_GT(cost.bytes, 0);
  }
}

TEST(MeasuredBlocks, AreCutWhereTheSlowestStageIsFastest) {
  const TinyRun run = run_with_a_large_head();
  const planner::Plan plan = plan_of(run);

  EXPECT_EQ(engine::bounds_by_cost(
                plan, planner::estimate_memory(plan), costs_of_a_dear_head(1 << 10), kMuch),
            (std::vector<int>{0, 5, 6}));
  // The first stage has two micro-batches in flight, so it holds each block's GiB twice: two
  // blocks fit into 95 % of half of 12 GiB, three do not.
  EXPECT_EQ(engine::bounds_by_cost(plan,
                                   planner::estimate_memory(plan),
                                   costs_of_a_dear_head(std::int64_t{1} << 30),
                                   std::uint64_t{12} << 30),
            (std::vector<int>{0, 2, 6}));
}

TEST(MeasuredBlocks, ShareTheModelOnAllRanksAlike) {
  const TinyRun run = run_with_a_large_head();
  const planner::PlanWithData plan(plan_of(run), {});
  const auto data = engine::open_data(plan, {});
  std::vector<std::vector<int>> bounds(2);
  comm::run_threads(plan.mesh(), [&](comm::World& world) {
    at::set_num_threads(1);
    bounds[static_cast<std::size_t>(world.rank())] =
        engine::with_measured_stages(
            plan, planner::estimate_memory(plan), world, *data->train, kMuch)
            .layout()
            .stages.bounds;
  });

  // Where the model is split depends on this machine.
  ASSERT_EQ(bounds[0].size(), 3U);
  EXPECT_EQ(bounds[0].front(), 0);
  EXPECT_THAT(bounds[0][1], ::testing::AllOf(::testing::Ge(1), ::testing::Le(5)));
  EXPECT_EQ(bounds[0].back(), 6);
  EXPECT_EQ(bounds[1], bounds[0]);
}

TEST(MeasuredBlocks, ThatFitNowhereAreRefused) {
  const TinyRun run = run_with_a_large_head();
  const planner::PlanWithData plan(plan_of(run), {});
  const auto data = engine::open_data(plan, {});
  comm::run_threads(plan.mesh(), [&](comm::World& world) {
    at::set_num_threads(1);
    try {
      (void)engine::with_measured_stages(
          plan, planner::estimate_memory(plan), world, *data->train, 1 << 20);
      ADD_FAILURE() << "stages that do not fit";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Error::Kind::Memory);
      EXPECT_THAT(error.what(), ::testing::HasSubstr("no cut of 6 blocks into 2 parts"));
    }
  });
}

TEST(MeasuredBlocks, OfAPlanThatDoesNotAskStayWhereTheyAre) {
  const TinyRun run;
  const planner::PlanWithData plan(run.plan({.ranks = 2, .accumulation = 2, .pipeline = "2"}), {});
  const auto data = engine::open_data(plan, {});
  comm::run_threads(plan.mesh(), [&](comm::World& world) {
    const planner::PlanWithData mine =
        engine::with_measured_stages(plan, planner::estimate_memory(plan), world, *data->train, 0);
    EXPECT_EQ(mine.layout().stages.bounds, plan.layout().stages.bounds);
  });
}

}  // namespace
}  // namespace tessera::test
