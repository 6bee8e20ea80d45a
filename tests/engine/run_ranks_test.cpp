// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "support/no_threads.h"
#include "support/train_runs.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/engine/launch.h"
#include "tessera/planner/course.h"
#include "tessera/planner/plan.h"

namespace tessera::engine {
namespace {

using test::TinyRun;

/// The hash of what the ranks must agree on, after `path` has become `value`.
std::uint64_t asked_after(TinyRun run, const std::string& path, const std::string& value) {
  return asked_of(planner::PlanWithData(run.set(path, value).plan({}), {}));
}

TEST(RanksOfALauncher, MustAgreeAboutWhatIsTrained) {
  const TinyRun run;
  const auto plan_of = [&](std::int64_t steps) {
    return planner::PlanWithData(run.plan({}), {.max_steps = steps});
  };
  const std::uint64_t asked = asked_of(plan_of(0));

  EXPECT_EQ(asked, asked_of(plan_of(0)));
  EXPECT_NE(asked, asked_after(run, "optimizer.params.lr", "0.002"));
  EXPECT_NE(asked, asked_after(run, "trainer.seed", "6"));
  EXPECT_NE(asked, asked_after(run, "run.dir", "\"elsewhere\""));
  EXPECT_NE(asked, asked_of(plan_of(1))) << "as other data makes it";
}

TEST(RanksOfALauncher, MayHaveThreadsOfTheirOwn) {
  const TinyRun run;

  EXPECT_EQ(asked_of(planner::PlanWithData(run.plan({}), {})),
            asked_after(run, "run.threads_per_rank", "2"));
}

TEST(RanksThreads, ThatCannotBeHadAreAnErrorWithARemedy) {
  const tessera::test::NoMoreThreads none;
  try {
    prepare_process(3);
    ADD_FAILURE() << "threads were made";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::Environment);
    EXPECT_THAT(error.what(), testing::HasSubstr("cannot start 4 more threads"));
    EXPECT_THAT(error.fix(), testing::HasSubstr("run.threads_per_rank"));
  }
}

TEST(TrainingWords, SpeakOfItsCheckpoints) {
  const launch::Messages training = training_messages(), others;

  EXPECT_NE(training.again.find("checkpoint"), std::string::npos);
  EXPECT_EQ(others.again.find("checkpoint"), std::string::npos);
}

}  // namespace
}  // namespace tessera::engine
