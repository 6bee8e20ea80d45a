// SPDX-License-Identifier: Apache-2.0
// labels: slow
// timeout: 300
// An alarm sends a run back to an earlier checkpoint; tests/cli/rl_runs_test.sh has whole runs.
#include "tessera/rlhf/roll_back.h"

#include <filesystem>
#include <fstream>
#include <string>

#include "rlhf/support.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/checkpoint/folders.h"
#include "tessera/planner/course.h"
#include "tessera/planner/place.h"
#include "tessera/planner/plan.h"
#include "tessera/rlhf/plan.h"

namespace tessera::test {
namespace {

using ::testing::HasSubstr;

/// A policy of which all completions earn the same.
TinyRun equal_rewards(const std::string& more, const std::string& on_alarm = "roll_back") {
  TinyRun run = reinforcing("{\"prompt\": \"a\"}\n{\"prompt\": \"b\"}\n",
                            R"({"samples": 2, "max_new_tokens": 2,
          "rewards": [{"type": "length", "max": 100}], "on_alarm": ")" +
                                on_alarm + "\"" + more + "}");
  return run.set("checkpoint.every", "4").set("checkpoint.keep", "20");
}

std::string roll_back_refusal(const TinyRun& run) {
  try {
    const planner::PlanWithData plan =
        planner::place(planner::PlanWithData(run.plan({.accumulation = 2}), {}));
  } catch (const Error& error) {
    return error.text();
  }
  return {};
}

TEST(RlRollBack, NeedsCheckpointsThatAreOldEnough) {
  EXPECT_EQ(roll_back_refusal(equal_rewards("")), "");
  // The alarm holds for nine rollouts after its first one, and the run goes back five more: 14
  // steps. With a checkpoint every 4 steps, 5 of them reach back that far.
  EXPECT_THAT(roll_back_refusal(equal_rewards("").set("checkpoint.keep", "4")),
              HasSubstr("set checkpoint.keep to 5"));
  EXPECT_EQ(roll_back_refusal(equal_rewards("").set("checkpoint.keep", "5")), "");
  EXPECT_THAT(roll_back_refusal(equal_rewards("").set("checkpoint.every", "0")),
              HasSubstr("checkpoint.every"));
  EXPECT_THAT(roll_back_refusal(equal_rewards(R"(, "roll_back": {"kl_factor": 2})")),
              HasSubstr("kl.place"));
  EXPECT_THAT(roll_back_refusal(equal_rewards(R"(, "roll_back": {"most": 2})", "warn")),
              HasSubstr("no alarm sends the run back"));
}

TEST(RlRollBack, AnAlarmOfTenRolloutsEndsTheEngineWithItsTarget) {
  const TinyRun run = equal_rewards(R"(, "roll_back": {"rollouts": 2})");
  try {
    (void)train(run, {.ranks = 2, .accumulation = 1}, {.steps = 20});
    FAIL() << "the alarm has no effect";
  } catch (const rlhf::RollBack& alarm) {
    EXPECT_EQ(alarm.kind(), Error::Kind::Numeric);
    EXPECT_EQ(alarm.target().alarm, "equal_groups");
    EXPECT_EQ(alarm.target().after, 9);
    EXPECT_EQ(alarm.target().newest, -2);
    EXPECT_EQ(alarm.target().times, 1);
  }
}

/// A run folder with checkpoints of these steps, metrics and a ledger.
class RlRollBackTarget : public ::testing::Test {
 protected:
  void SetUp() override {
    TinyRun run;
    run.set("model.dropout", "0");
    (void)run.train({.stage = 0}, 1, saved_.path());
    folder_.prepare(json::Value::object());
    for (const std::int64_t step : {4, 8, 12}) {
      std::filesystem::copy(*checkpoint::newest(saved_.path()),
                            folder_.checkpoints() / checkpoint::step_name(step),
                            std::filesystem::copy_options::recursive);
    }
    std::ofstream ledger(folder_.path() / "rollouts.jsonl");
    for (int version = 0; version < 13; ++version)
      ledger << R"({"kind": "completion", "version": )" << version << ", \"number\": 0}\n";
  }
  static rlhf::RollBack alarm(std::int64_t newest, std::int64_t times) {
    return rlhf::RollBack({.alarm = "far",
                           .what = "too far",
                           .fix = "",
                           .after = 12,
                           .newest = newest,
                           .times = times});
  }
  std::filesystem::path go_back(std::int64_t newest, std::int64_t times) {
    std::filesystem::path out;
    comm::run_threads(2, [&](comm::World& world) {
      const std::filesystem::path to = rlhf::go_back(world, folder_, alarm(newest, times));
      if (world.is_leader()) out = to;
    });
    return out;
  }
  files::TempDir parent_, saved_;
  engine::RunFolder folder_{parent_.path() / "run"};
};

TEST_F(RlRollBackTarget, LeadsToTheNewestCheckpointThatIsOldEnough) {
  EXPECT_EQ(go_back(9, 1).filename(), checkpoint::step_name(8));
  // Later checkpoints and the whole ledger were moved aside; the ledger of the run ends before the
  // checkpoint.
  EXPECT_EQ(checkpoint::list(folder_.checkpoints()).size(), 2U);
  const std::filesystem::path aside = parent_.path() / "run.old-1";
  EXPECT_TRUE(std::filesystem::exists(aside / "checkpoints" / checkpoint::step_name(12)));
  EXPECT_THAT(files::read(aside / "rollouts.jsonl"), HasSubstr("\"version\": 12"));
  const std::string ledger = files::read(folder_.path() / "rollouts.jsonl");
  EXPECT_THAT(ledger, HasSubstr("\"version\": 7,"));
  EXPECT_THAT(ledger, testing::Not(HasSubstr("\"version\": 8,")));

  EXPECT_EQ(go_back(5, 2).filename(), checkpoint::step_name(4));
  EXPECT_EQ(rlhf::roll_backs_up_to(folder_.path(), 8, 0), 2);
  EXPECT_EQ(rlhf::roll_backs_up_to(folder_.path(), 4, 0), 2);
  EXPECT_EQ(rlhf::roll_backs_up_to(folder_.path(), 3, 0), 0);
  EXPECT_EQ(rlhf::roll_backs_up_to(folder_.path(), 3, 5), 5);
  rlhf::forget_roll_backs_after(folder_.path(), 4);
  EXPECT_EQ(rlhf::roll_backs_up_to(folder_.path(), 8, 0), 2);
  rlhf::forget_roll_backs_after(folder_.path(), 3);
  EXPECT_EQ(rlhf::roll_backs_up_to(folder_.path(), 8, 0), 0);
}

TEST_F(RlRollBackTarget, EndsWithTheAlarmWithoutSuchACheckpoint) {
  try {
    (void)go_back(3, 1);
    FAIL() << "it went back";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::Numeric);
    EXPECT_THAT(error.what(), HasSubstr("too far"));
  }
  EXPECT_EQ(checkpoint::list(folder_.checkpoints()).size(), 3U);
}

}  // namespace
}  // namespace tessera::test
