// SPDX-License-Identifier: Apache-2.0
// Stages that do not hold the model between them train nothing.
#include "tessera/engine/engine.h"

#include <string>
#include <vector>

#include "support/train_runs.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/Parallel.h>

#include "tessera/base/error.h"
#include "tessera/comm/world.h"
#include "tessera/engine/launch.h"
#include "tessera/parallel/layout.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/with_data.h"

namespace tessera::test {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

/// Returns the error of each stage's engine ("nothing" without one) where every stage splits a
/// model of six blocks at its own bounds.
std::vector<std::string> refusals(const std::vector<std::vector<int>>& bounds) {
  engine::prepare_process(1);
  const int stages = static_cast<int>(bounds.size());
  TinyRun run;
  run.set("model.num_layers", "4");
  const planner::Plan made =
      run.plan({.ranks = stages, .accumulation = 2, .pipeline = std::to_string(stages)});
  const auto data = engine::open_data(made, {});
  const planner::PlanWithData plan = planner::with_data(made, *data);
  std::vector<std::string> out(bounds.size());
  comm::run_threads(plan.mesh(), [&](comm::World& world) {
    at::set_num_threads(1);
    const auto stage = static_cast<std::size_t>(world.rank());
    parallel::Layout layout = plan.layout();
    layout.stages.bounds = bounds[stage];
    try {
      engine::Engine engine(planner::with(plan, std::move(layout)), world, data);
      engine.finish();
      out[stage] = "nothing";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Error::Kind::Bug);
      out[stage] = error.what();
    }
    world.transport().barrier(world.everyone(), TESSERA_HERE("end of a test"))->wait();
  });
  return out;
}

TEST(Stages, ThatHoldTheModelBetweenThemAreTaken) {
  EXPECT_THAT(refusals({{0, 3, 6}, {0, 3, 6}}), Each("nothing"));
}

TEST(Stages, ThatLeaveABlockOutAreRefused) {
  EXPECT_THAT(refusals({{0, 3, 6}, {0, 4, 6}}),
              Each(AllOf(HasSubstr("the stages hold 5 blocks"), HasSubstr("the model has 6"))));
}

TEST(Stages, ThatShareABlockAreRefused) {
  EXPECT_THAT(refusals({{0, 4, 6}, {0, 3, 6}}), Each(HasSubstr("the stages hold 7 blocks")));
}

/// The second and the third stage both hold the last two blocks, and no stage holds the third and
/// the fourth.
TEST(Stages, ThatHoldOtherParametersInAsManyBlocksAreRefused) {
  EXPECT_THAT(refusals({{0, 2, 4, 6}, {0, 4, 6, 6}, {0, 2, 4, 6}}),
              Each(HasSubstr("the stages hold 6 blocks")));
}

}  // namespace
}  // namespace tessera::test
