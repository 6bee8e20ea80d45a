// SPDX-License-Identifier: Apache-2.0
// Tests of a reward model on held-out pairs, with scores that are functions of the texts.
#include "tessera/rlhf/reward_check.h"

#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/text/tokenizer.h"

namespace tessera::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::int64_t kPairLength = 12;
constexpr std::int32_t kPairEnd = 256;

/// Pairs of the prompt "q" whose chosen answers are longer.
class RlRewardCheck : public ::testing::Test {
 protected:
  RlRewardCheck()
      : pairs_({.length = 2 * kPairLength, .pad_id = kPairEnd}),
        tokenizer_(text::make_tokenizer({.type = "byte"})) {
    const std::filesystem::path file = folder_.path() / "pairs.jsonl";
    std::ofstream(file) << R"({"prompt": "q", "chosen": "aaaa", "rejected": "bb"})"
                           "\n"
                        << R"({"prompt": "q", "chosen": "aaa", "rejected": "b"})"
                           "\n"
                        << R"({"prompt": "q", "chosen": "aaaaaaaaaaaaaaaa", "rejected": "b"})"
                           "\n";
    pairs_.read_files({file.string()},
                      tasks::record_options({}, "pairs"),
                      tasks::ConversationTokenizer(*tokenizer_, nullptr),
                      [] {});
  }
  /// `score` receives the ids of a text, without padding.
  template <class Score>
  rlhf::RewardCheck check(const Score& score) const {
    return rlhf::check_reward(pairs_, kPairLength, kPairEnd, kPairEnd, [&](const rlhf::Rows& rows) {
      std::vector<double> out;
      for (std::int64_t b = 0; b < rows.size(); ++b) {
        std::vector<std::int64_t> ids = {rows.input_ids_BT[b][0].item<std::int64_t>()};
        for (std::int64_t t = 0; t + 1 < kPairLength; ++t) {
          if (const auto id = rows.labels_BT[b][t].item<std::int64_t>(); id >= 0) ids.push_back(id);
        }
        out.push_back(score(ids));
      }
      return out;
    });
  }

  files::TempDir folder_;
  tasks::PreferenceSamples pairs_;
  text::TokenizerPtr tokenizer_;
};

TEST_F(RlRewardCheck, AcceptsAModelThatPrefersTheChosenTexts) {
  const rlhf::RewardCheck good = check([](const auto& ids) { return ids[1] == 'a' ? 1.0 : 0.0; });

  EXPECT_EQ(good.pairs, 2);  // one does not fit
  EXPECT_EQ(good.accuracy, 1.0);
  EXPECT_EQ(good.empty_preferred, 0.0);
}

TEST_F(RlRewardCheck, NamesAModelThatCountsTokens) {
  const rlhf::RewardCheck longer =
      check([](const auto& ids) { return static_cast<double>(ids.size()); });

  EXPECT_NEAR(longer.length_correlation, 1.0, 1e-12);
  EXPECT_THAT(longer.complaints(), ElementsAre(HasSubstr("follows the length")));
}

TEST_F(RlRewardCheck, NamesAModelThatPrefersNothing) {
  const rlhf::RewardCheck empty = check([](const auto& ids) {
    return ids[1] == kPairEnd ? 2.0 : ids[1] == 'b' ? 1.0 : 0.0;
  });

  EXPECT_EQ(empty.accuracy, 0.0);
  EXPECT_EQ(empty.empty_preferred, 1.0);
  EXPECT_THAT(empty.complaints(), testing::Contains(HasSubstr("chosen text in 0 % of 2")));
  EXPECT_THAT(empty.complaints(), testing::Contains(HasSubstr("an empty answer")));
}

TEST_F(RlRewardCheck, RefusesPairsThatDoNotFit) {
  EXPECT_THROW(
      rlhf::check_reward(
          pairs_, 2, kPairEnd, kPairEnd, [](const auto&) { return std::vector<double>(); }),
      Error);
}

}  // namespace
}  // namespace tessera::test
