// SPDX-License-Identifier: Apache-2.0
// labels: fast
// The keys of error feedback, what they mean and where they are refused.
#include <optional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/parallel/layout.h"
#include "tessera/planner/make_plan.h"
#include "tessera/planner/memory.h"
#include "tessera/planner/model_plan.h"
#include "tessera/planner/plan.h"

namespace tessera::planner {
namespace {

using testing::AllOf;
using testing::HasSubstr;

Plan plan_of(const std::string& members, int ranks) {
  return make_plan(json::parse(R"({"model": {"preset": "nano"}, "train_batch_size": 8,
                      "data": {"train": "a.txt", "sequence_length": 64})" +
                                   members + "}",
                               "c.json"),
                   ranks,
                   "c.json");
}

std::string stage_one(const std::string& keys) {
  return R"(, "zero_optimization": {"stage": 1, "zeropp_loco_param": )" + keys + "}";
}
const std::string kCoded = R"(, "communication_data_type": "int8")";

TEST(ErrorFeedback, HasDeepSpeedsKeysAndDefaults) {
  const auto feedback = [](const std::string& keys) {
    return plan_of(R"(, "zero_optimization": {"stage": 3, "zero_quantized_gradients": true,
                      "zeropp_loco_param": )" +
                       keys + "}",
                   2)
        .layout()
        .feedback;
  };

  const auto both = feedback(R"({"err_beta": 0.5, "reset_T": 16})");
  ASSERT_TRUE(both.has_value());
  EXPECT_EQ(both->beta, 0.5);
  EXPECT_EQ(both->reset, 16);
  EXPECT_EQ(feedback(R"({"err_beta": 0})")->reset, 1024);
  EXPECT_EQ(feedback(R"({"reset_T": 2})")->beta, 0.8);
  EXPECT_FALSE(feedback("null").has_value());
  EXPECT_FALSE(feedback("{}").has_value());
}

TEST(ErrorFeedback, IsRefusedWhereNothingWouldBeKept) {
  const auto refusal = [](const std::string& members) -> std::string {
    try {
      plan_of(stage_one(R"({"err_beta": 0.8})") + members, 2);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Error::Kind::Config);
      return error.text();
    }
    return "";
  };

  EXPECT_EQ(refusal(kCoded), "");
  EXPECT_THAT(refusal(""),
              AllOf(HasSubstr("zero_optimization.zeropp_loco_param"), HasSubstr("travel in fp32")));
  EXPECT_THAT(refusal(R"(, "communication_data_type": "bf16")"), HasSubstr("travel in bf16"));
  EXPECT_THAT(refusal(kCoded + R"(, "parallel": {"tensor": 2})"),
              HasSubstr("does not go with parallel.tensor"));
  EXPECT_THAT(refusal(kCoded + R"(, "parallel": {"context": 2})"),
              HasSubstr("does not go with parallel.context"));
  EXPECT_THAT(refusal(kCoded + R"(, "optimizer": {"type": "OneBitAdam"})"),
              HasSubstr("does not go with OneBitAdam"));
}

TEST(ErrorFeedback, TakesTwoBytesPerParameterOnEveryRank) {
  const Plan with = plan_of(stage_one(R"({"err_beta": 0.8})") + kCoded, 4),
             without = plan_of(stage_one("null") + kCoded, 4);
  const std::int64_t parameters = with.model().resolved.num_parameters;
  const auto near = [](std::int64_t bytes, std::int64_t wanted) {
    // Buffers have padding, and the tied table is used twice.
    EXPECT_GE(bytes, wanted);
    EXPECT_LE(static_cast<double>(bytes), 1.1 * static_cast<double>(wanted));
  };

  near(estimate_memory(with).gradients - estimate_memory(without).gradients, 2 * parameters);
  near(checkpoint_bytes(with) - checkpoint_bytes(without), 4 * 2 * parameters);
}

}  // namespace
}  // namespace tessera::planner
