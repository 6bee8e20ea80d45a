// SPDX-License-Identifier: Apache-2.0
// labels: slow
// timeout: 120
// rollouts.txt: what it says, how large it becomes, and that stops and ranks change nothing in it.
#include "tessera/rlhf/readable.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "rlhf/support.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/files.h"

namespace tessera::test {
namespace {

using rlhf::ReadableRollouts;
using rlhf::ReadableSample;
using ::testing::HasSubstr;
using ::testing::Not;

class RlReadable : public ::testing::Test {
 protected:
  void add(ReadableRollouts& to, std::int64_t version, const ReadableSample& sample) const {
    to.add(version, std::vector<ReadableSample>{sample}, names_);
  }
  [[nodiscard]] std::string text() const { return files::read(file_); }

  files::TempDir folder_;
  std::filesystem::path file_ = folder_.path() / "rollouts.txt";
  std::vector<std::string> names_ = {"number", "format"};
};

TEST_F(RlReadable, ShowsPromptCompletionAndRewards) {
  ReadableRollouts rollouts(file_, 10, 0);
  add(rollouts,
      20,
      {.prompt = 7,
       .prompt_text = "2 + 2\n= ?",
       .text = "four\n== after 99 updates\x1b[2J \xC2\x9B\x37m \xC2\xA0",
       .tokens = 12,
       .ended = false,
       .reward = 0.75,
       .parts = {1.0, NAN}});
  EXPECT_EQ(text(),
            "== after 20 updates\n\n"
            "prompt 7: reward 0.75 (number 1, format none), 12 tokens, no end\n"
            "  > 2 + 2\n  > = ?\n"
            "  | four\n  | == after 99 updates?[2J ?7m \xC2\xA0\n\n");
}

TEST_F(RlReadable, IsOfTheFirstRolloutAndOfPrintedSteps) {
  const ReadableRollouts rollouts(file_, 10, 0), never(file_, 0, 0);
  EXPECT_TRUE(rollouts.wants(0, 1));
  EXPECT_FALSE(rollouts.wants(8, 1));
  EXPECT_TRUE(rollouts.wants(9, 1));  // its update is step 10
  EXPECT_FALSE(rollouts.wants(10, 1));
  EXPECT_TRUE(rollouts.wants(8, 4));
  EXPECT_FALSE(never.wants(0, 1));
}

TEST_F(RlReadable, LosesTheOldestAndCutsLongTexts) {
  ReadableRollouts rollouts(file_, 1, 0);
  const std::string long_text = std::string(1999, 'x') + "\xC3\xA4" + std::string(50000, 'y');
  const std::vector<ReadableSample> samples(50, {.text = long_text, .parts = {0, 0}});
  for (std::int64_t version = 0; version < 20; ++version)
    rollouts.add(version, samples, names_);
  EXPECT_LE(text().size(), std::size_t{1} << 20U);
  EXPECT_GT(text().size(), std::size_t{1} << 19U);
  EXPECT_THAT(text(), Not(HasSubstr("== after 0 updates")));
  EXPECT_THAT(text(), HasSubstr("== after 19 updates"));
  EXPECT_THAT(text(), HasSubstr("x\n  ... and 50002 bytes\n"));
}

TEST_F(RlReadable, ContinuesWithoutWhatALaterPolicyWrote) {
  {
    ReadableRollouts rollouts(file_, 1, 0);
    for (const std::int64_t version : {0, 1, 2})
      add(rollouts, version, {.text = "of " + std::to_string(version), .parts = {0, 0}});
  }
  const std::string whole = text();
  ReadableRollouts again(file_, 1, 1);
  add(again, 2, {.text = "of 2", .parts = {0, 0}});
  EXPECT_EQ(text(), whole);
  // A run that went back draws other tokens with the same policy.
  ReadableRollouts back(file_, 1, 1);
  add(back, 1, {.text = "other", .parts = {0, 0}});
  EXPECT_THAT(text(), Not(HasSubstr("of 1")));
  EXPECT_THAT(text(), HasSubstr("of 0"));
  EXPECT_THAT(text(), HasSubstr("== after 1 updates\n\nprompt 0: reward 0"));
}

TEST_F(RlReadable, IsTheSameOnAnyRanksAndAfterAStop) {
  TinyRun run = reinforcing(
      "{\"prompt\": \"ab\"}\n{\"prompt\": \"c\"}\n{\"prompt\": \"d\"}\n{\"prompt\": \"e\"}\n",
      R"({"samples": 2, "max_new_tokens": 4, "rewards": [
          {"type": "regex", "pattern": "[@-~]"}, {"type": "length", "max": 3, "weight": 0.5}]})");
  run.set("steps_per_print", "2");
  const Layout one{.ranks = 1, .accumulation = 4};
  (void)train(run,
              one,
              {.steps = 5,
               .run_dir = folder_.path(),
               .root = folder_.path() / "checkpoints",
               .save_at = {2}});
  const std::string whole = text();
  for (const char* part : {"== after 0 updates\n",
                           "== after 1 updates\n",
                           "== after 3 updates\n",
                           "(regex ",
                           ", length ",
                           "  > ab\n"})
    EXPECT_THAT(whole, HasSubstr(part));
  EXPECT_THAT(whole, Not(HasSubstr("== after 2 updates\n")));

  (void)train(run,
              {.ranks = 2, .accumulation = 2},
              {.steps = 5,
               .run_dir = folder_.path(),
               .resume = *checkpoint::newest(folder_.path() / "checkpoints")});
  EXPECT_EQ(text(), whole);
}

}  // namespace
}  // namespace tessera::test
