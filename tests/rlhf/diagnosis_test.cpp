// SPDX-License-Identifier: Apache-2.0
// Tests the sentences with which tessera doctor explains a run of the task rl.
#include "tessera/rlhf/diagnosis.h"

#include <fstream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/files.h"

namespace tessera::test {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class RlDiagnosis : public ::testing::Test {
 protected:
  void write(const char* name, const std::string& text) const {
    std::ofstream(folder_.path() / name) << text;
  }
  /// Twenty recorded steps, the last ten of which have this share of groups without variance and
  /// this length; the first ten have completions of ten tokens.
  void write_steps(double equal, double length = 10) const {
    std::string metrics;
    for (int step = 1; step <= 20; ++step) {
      metrics += fmt::format(
          "{{\"step\": {}, \"loss\": 0, \"terms\": {{\"reward\": {}, \"equal_groups\": {}, "
          "\"length\": {}, \"truncated\": 0, \"entropy\": 1}}}}\n",
          step,
          step <= 10 ? 0.25 : 0.75,
          step <= 10 ? 0.0 : equal,
          step <= 10 ? 10.0 : length);
    }
    write("metrics.jsonl", metrics);
    write("rollouts.jsonl",
          "{\"kind\": \"completion\", \"version\": 18, \"text\": \"old\"}\n"
          "{\"kind\": \"completion\", \"version\": 19, \"text\": \"new\"}\n"
          "{\"kind\": \"worth\", \"version\": 19}\n"
          "{\"kind\": \"completion\", \"versi");
  }
  [[nodiscard]] std::vector<std::string> told() const { return rlhf::diagnosis_of(folder_.path()); }
  files::TempDir folder_;
};

TEST_F(RlDiagnosis, SaysNothingOfOtherRuns) {
  EXPECT_THAT(told(), IsEmpty());
}

TEST_F(RlDiagnosis, SaysTheAlarmsInWordsWithCompletions) {
  write_steps(0.92);
  const std::vector<std::string> lines = told();
  EXPECT_THAT(lines, Contains(HasSubstr("equal in 92 % of groups: nothing is learned")));
  EXPECT_THAT(lines, Contains(HasSubstr("\"new\"")));
  EXPECT_THAT(lines, Not(Contains(HasSubstr("\"old\""))));
  EXPECT_THAT(lines, Contains(HasSubstr("raise rl.samples")));
  EXPECT_THAT(lines.front(), HasSubstr("0.25 on average over the first 10"));
  EXPECT_THAT(lines.front(), HasSubstr("0.75 over the last"));
}

TEST_F(RlDiagnosis, ComparesLengthsWithTheFirstSteps) {
  write_steps(0.2, 45);
  EXPECT_THAT(told(), Contains(HasSubstr("have 45 tokens on average, and had 10 in the first 10")));
}

TEST_F(RlDiagnosis, SaysThatNothingIsWrong) {
  write_steps(0.2);
  EXPECT_THAT(told(), Contains("the last recorded rollouts raise no alarm"));
}

TEST_F(RlDiagnosis, ReportsReturnsAndTheTestsBeforeTheStart) {
  write_steps(0.2);
  write("roll_backs.jsonl", "{\"times\": 1, \"alarm\": \"far\", \"after\": 30, \"to\": 8}\n");
  write("reward_models.json",
        "{\"judge\": {\"pairs\": 50, \"accuracy\": 0.5, \"length_correlation\": 0.1, "
        "\"empty_preferred\": 0}}");
  write("end_token.json", "{\"answers\": 4, \"probability\": 0.0001, \"end\": \"<e> (number 2)\"}");
  const std::vector<std::string> lines = told();
  EXPECT_THAT(lines,
              Contains(HasSubstr("the alarm far after 30 updates sent the run back to the "
                                 "checkpoint of 8 updates")));
  EXPECT_THAT(lines, Contains(HasSubstr("the reward model judge: it prefers")));
  EXPECT_THAT(lines, Contains(HasSubstr("<e> (number 2)")));
}

}  // namespace
}  // namespace tessera::test
