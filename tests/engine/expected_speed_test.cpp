// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/expected_speed.h"

#include <cerrno>
#include <cstdint>

#include <gtest/gtest.h>
#include <sys/wait.h>

#include "tessera/config/json.h"
#include "tessera/planner/course.h"
#include "tessera/planner/make_plan.h"
#include "tessera/planner/plan.h"

namespace tessera::engine {
namespace {

planner::PlanWithData plan_of(std::int64_t steps) {
  const char* const text =
      R"({"model": {"num_layers": 1, "hidden_size": 8, "num_heads": 2, "vocab_size": 256},
          "data": {"train": "none.txt", "sequence_length": 16}, "train_batch_size": 4,
          "run": {"threads_per_rank": 1}})";
  return {planner::make_plan(json::parse_strict(text, "test"), 2, "test"), {.max_steps = steps}};
}

TEST(ExpectedSpeed, CountsSixOperationsOfAParameterForEachToken) {
  const planner::PlanWithData plan = plan_of(10);

  // Token and position tables, two norms with biases and the last one, attention, and MLP.
  const double parameters =
      256 * 8 + 16 * 8 + 3 * 16 + (24 * 8 + 24 + 8 * 8 + 8) + (32 * 8 + 32 + 8 * 32 + 8);
  EXPECT_EQ(expected_flops(plan), 6 * parameters * 10 * 4 * 16);
}

TEST(ExpectedSpeed, IsOnlyMeasuredForLongTrainings) {
  EXPECT_EQ(expected_speed(plan_of(10)), 0.0);
  EXPECT_GT(expected_speed(plan_of(200000000)), 0.0);

  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);  // the child process has been reaped
  EXPECT_EQ(errno, ECHILD);
}

}  // namespace
}  // namespace tessera::engine
