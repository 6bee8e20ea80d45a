// SPDX-License-Identifier: Apache-2.0
// Rewards, values and advantages of completions are the same as tensors and as entries of the
// ledger, and a rollout of which nothing is learned is reported.
#include "tessera/rlhf/worths.h"

#include <cmath>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

namespace tessera::rlhf {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

/// Completions of two tokens and of one after a prompt of two, in rows of five columns.
class RlWorths : public testing::Test {
 protected:
  RlWorths() {
    const std::vector<RowOf> rows = {{prompt_, longer_}, {prompt_, brief_}};
    rows_ = rows_of(rows, 5, 0);
    scored_.mask_BT = rows_.labels_BT.ge(0);
    scored_.rewards_BF = at::tensor({1.0, 2.0, 3.0, NAN}, at::kDouble).view({2, 2});
    scored_.old_BT = numbers(0);
    scored_.values_BT = numbers(100);
    made_ = {numbers(10), numbers(20)};
  }
  at::Tensor numbers(double first) const {
    return in_columns(rows_, [=](std::int64_t row, std::int64_t token) {
      return first + 3.0 * static_cast<double>(row) + static_cast<double>(token);
    });
  }
  const std::vector<std::int32_t> prompt_ = {1, 2}, longer_ = {8, 9}, brief_ = {7};
  Rows rows_;
  Scored scored_;
  Advantages made_;
};

TEST_F(RlWorths, AreTheTokensOfEachCompletionAndComeBackAsTheyWere) {
  const std::vector<Worth> worths = {worth_of(scored_, made_, 0), worth_of(scored_, made_, 1)};

  EXPECT_THAT(worths[0].rewards, ElementsAre(1, 2));
  EXPECT_THAT(worths[0].old, ElementsAre(0, 1));
  EXPECT_THAT(worths[1].old, ElementsAre(3));
  EXPECT_THAT(worths[0].advantages, ElementsAre(10, 11));
  EXPECT_THAT(worths[1].returns, ElementsAre(23));
  EXPECT_THAT(worths[0].reference, ElementsAre());

  Scored scored;
  Advantages made;
  ASSERT_TRUE(take_over(worths, rows_, scored, made));
  EXPECT_TRUE(scored.old_BT.equal(scored_.old_BT));
  EXPECT_TRUE(scored.values_BT.equal(scored_.values_BT));
  EXPECT_TRUE(made.advantages_BT.equal(made_.advantages_BT));
  EXPECT_TRUE(made.returns_BT.equal(made_.returns_BT));
  EXPECT_FALSE(scored.reference_BT.defined());
  EXPECT_TRUE(scored.rewards_BF.nan_to_num(-1).equal(scored_.rewards_BF.nan_to_num(-1)));
}

TEST_F(RlWorths, AreNotTakenOverIfSomeLackAList) {
  std::vector<Worth> worths = {worth_of(scored_, made_, 0), worth_of(scored_, made_, 1)};
  worths[1].values.clear();
  Scored scored;
  Advantages made;
  EXPECT_FALSE(take_over(worths, rows_, scored, made));
}

TEST_F(RlWorths, OfWhichNothingIsLearnedAreNamed) {
  EXPECT_FALSE(complaint_of_dropped(scored_, rows_.labels_BT).has_value());
  EXPECT_THAT(complaint_of_dropped(scored_, at::full_like(rows_.labels_BT, -100)).value(),
              HasSubstr("left out of the loss"));
  scored_.rewards_BF.fill_(NAN);
  EXPECT_THAT(complaint_of_dropped(scored_, rows_.labels_BT).value(),
              HasSubstr("no completion of a rollout has a reward"));
}

}  // namespace
}  // namespace tessera::rlhf
