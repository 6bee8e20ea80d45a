// SPDX-License-Identifier: Apache-2.0
// Tests of the end token before the first rollout, with log-probabilities that are given.
#include "tessera/rlhf/end_check.h"

#include <cmath>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "tessera/base/files.h"
#include "tessera/tasks/record_task.h"

namespace tessera::test {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kEndCheckLength = 10;

class RlEndCheck : public ::testing::Test {
 protected:
  /// Checks prompts of these records; the end token has the probability `of_end`, and other tokens
  /// 1.
  std::optional<rlhf::EndCheck> check(const std::string& records,
                                      double of_end,
                                      const std::vector<std::int32_t>& ends = {}) {
    const files::TempDir folder;
    const std::filesystem::path file = folder.path() / "prompts.jsonl";
    std::ofstream(file) << records;
    tasks::Prompts prompts({.length = kEndCheckLength,
                            .longest = 6,
                            .pad_id = tokenizer_->end_of_text(),
                            .ends = ends});
    prompts.read_files({file.string()},
                       tasks::record_options({}, "prompts"),
                       tasks::ConversationTokenizer(*tokenizer_, nullptr),
                       *tokenizer_,
                       [] {});
    return rlhf::check_end(prompts, *tokenizer_, kEndCheckLength, [&](const rlhf::Rows& rows) {
      rows_ = rows.size();
      // Padding is the end token too: only the label behind the answer counts.
      return at::where(rows.labels_BT.eq(tokenizer_->end_of_text()),
                       at::full({}, std::log(of_end), at::kDouble),
                       at::zeros({}, at::kDouble));
    });
  }
  text::TokenizerPtr tokenizer_ = text::make_tokenizer({.type = "byte"});
  std::int64_t rows_ = 0;
};

TEST_F(RlEndCheck, MeasuresTheEndBehindTheAnswersOfTheRecords) {
  const auto found = check(R"({"prompt": "ab", "answer": " cd "}
{"prompt": "a", "answer": 7}
{"prompt": "a"}
{"prompt": "a", "answer": "far too long for ten"}
)",
                           0.25);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->answers, 2);
  EXPECT_NEAR(found->probability, 0.25, 1e-12);
  EXPECT_FALSE(found->complaint());
}

TEST_F(RlEndCheck, AddsTheProbabilitiesOfAllEnds) {
  // The stand-in gives every token but the end of text a probability of 1.
  const auto found = check("{\"prompt\": \"ab\", \"answer\": \"cd\"}\n", 0.25, {0, 7});
  ASSERT_TRUE(found);
  EXPECT_EQ(found->answers, 1);
  EXPECT_NEAR(found->probability, 1.25, 1e-12);
  EXPECT_THAT(found->end, HasSubstr("(number 0) or"));
}

TEST_F(RlEndCheck, ComplainsOfAnEndThatWasNotTrained) {
  const auto found = check("{\"prompt\": \"ab\", \"answer\": \"cd\"}\n", 0.004);
  ASSERT_TRUE(found && found->complaint());
  EXPECT_THAT(*found->complaint(), HasSubstr("0.004 behind the answers of 1 records"));
  EXPECT_THAT(*found->complaint(), HasSubstr("untrained_end"));
}

TEST_F(RlEndCheck, NeedsAnAnswerAndFewOfThem) {
  EXPECT_FALSE(check("{\"prompt\": \"ab\"}\n", 0.5));
  std::string many;
  for (int i = 0; i < 100; ++i)
    many += "{\"prompt\": \"ab\", \"response\": \"cd\"}\n";
  ASSERT_TRUE(check(many, 0.5));
  EXPECT_EQ(rows_, 16);
}

TEST_F(RlEndCheck, ReportsAFirstRolloutWithoutEnds) {
  EXPECT_FALSE(rlhf::complaint_of_first_rollout({{"truncated", 0.8}}, {0}, *tokenizer_));
  const auto complaint = rlhf::complaint_of_first_rollout({{"truncated", 0.97}}, {0}, *tokenizer_);
  ASSERT_TRUE(complaint);
  EXPECT_THAT(*complaint, HasSubstr("97 % of the completions of the first rollout"));
}

}  // namespace
}  // namespace tessera::test
