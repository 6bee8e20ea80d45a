// SPDX-License-Identifier: Apache-2.0
// Trials whose program is a script that writes the steps of a training.
#include "tessera/tune/trial.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/files.h"

namespace tessera::tune {
namespace {

using ::testing::HasSubstr;

/// A program for /bin/sh, whose argument $1 is the configuration of the trial.
class Trials : public ::testing::Test {
 protected:
  TrialResult run(const std::string& script) {
    const files::fs::path file = folder_.path() / "program.sh";
    files::write_atomic(file, "metrics=" + (folder_.path() / "trial/run").string() + "\n" + script);
    options_.command = {"/bin/sh", file.string()};
    options_.folder = folder_.path() / "trial";
    options_.most_seconds = 20;
    return run_trial(json::parse(R"({"train_batch_size": 4, "eval": {"every": 10}})", "c"),
                     options_);
  }
  static std::string steps(const std::string& milliseconds) {
    return "mkdir -p $metrics; i=0; for ms in " + milliseconds +
           "; do i=$((i+1)); echo "
           "\"{\\\"step\\\":$i,\\\"step_ms\\\":$ms,\\\"mem_peak_bytes\\\":77}\""
           " >> $metrics/metrics.jsonl; done\n";
  }
  files::TempDir folder_;
  TrialOptions options_;
};

TEST_F(Trials, MeasureTheMedianOfTheStepsAfterTheFirst) {
  const TrialResult result = run(steps("9000 9000 100 120 110 5000") + "exit 0\n");
  EXPECT_EQ(result.outcome, Outcome::Measured);
  EXPECT_DOUBLE_EQ(result.step_s, 0.115);
  EXPECT_EQ(result.steps, 4);
  EXPECT_EQ(result.memory_bytes, 77);
  EXPECT_FALSE(files::fs::exists(folder_.path() / "trial" / "run")) << "the run is removed";
}

TEST_F(Trials, EndOnceEnoughStepsAreKnown) {
  const TrialResult result = run(steps("1 1 2 2 2 2") + "exec sleep 1000\n");
  EXPECT_EQ(result.outcome, Outcome::Measured);
  EXPECT_LT(result.wall_s, 15);
}

TEST_F(Trials, ReportTheErrorOfTheProgramOnOneLine) {
  const TrialResult result =
      run("echo 'warning: hm' >&2; echo 'error: no memory is left' >&2; echo '  fix: more' >&2; "
          "exit 5\n");
  EXPECT_EQ(result.outcome, Outcome::Failed);
  EXPECT_EQ(result.exit_code, 5);
  EXPECT_EQ(result.error, "no memory is left");
}

TEST_F(Trials, StopWhenTheyAreClearlySlower) {
  options_.clearly_slower_s = 0.5;
  const TrialResult result = run(steps("1 1 900 900") + "exec sleep 1000\n");
  EXPECT_EQ(result.outcome, Outcome::Stopped);
  EXPECT_DOUBLE_EQ(result.step_s, 0.9);
}

TEST_F(Trials, EndWithTheSearch) {
  options_.interrupted = [] { return true; };
  EXPECT_EQ(run("exec sleep 1000\n").outcome, Outcome::Interrupted);
}

TEST_F(Trials, WriteNothingButStepsAndEvaluateNothing) {
  (void)run("cp $1 $(dirname $1)/seen.json; exit 0\n");
  const json::Value seen =
      json::parse(files::read(folder_.path() / "trial" / "seen.json"), "seen.json");
  EXPECT_EQ(seen.find("eval"), nullptr);
  EXPECT_FALSE(seen.find("checkpoint")->find("final")->as_bool());
  EXPECT_EQ(seen.find("trainer")->find("max_steps")->as_integer(), 6);
}

TEST(MedianAndError, AreThoseOfFewValues) {
  EXPECT_EQ(median_and_error({}).first, 0);
  EXPECT_EQ(median_and_error({3}).first, 3);
  EXPECT_EQ(median_and_error({1, 2, 30}).first, 2);
  EXPECT_NEAR(median_and_error({1, 2, 3, 4, 5}).second, 1.2533 * 1.4826 / std::sqrt(5), 1e-12);
  for (const Outcome one : {Outcome::Measured,
                            Outcome::Stopped,
                            Outcome::Failed,
                            Outcome::TimedOut,
                            Outcome::Interrupted})
    EXPECT_EQ(outcome_of(name(one)), one);
}

}  // namespace
}  // namespace tessera::tune
