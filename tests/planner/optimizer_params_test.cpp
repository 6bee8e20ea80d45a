// SPDX-License-Identifier: Apache-2.0
// optimizer.params in a configuration: all that is wrong at once, and what chooses nothing.
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/optim/make_rule.h"
#include "tessera/planner/make_plan.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/recipe.h"

namespace tessera::planner {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

Plan plan_of(const std::string& optimizer) {
  const std::string text =
      R"({"model": {"preset": "nano"}, "data": {"train": "a.txt", "sequence_length": 64},
          "train_batch_size": 4, "optimizer": )" +
      optimizer + "}";
  return make_plan(json::parse(text, "c.json"), 1, "c.json");
}

std::string refusal(const std::string& optimizer) {
  try {
    plan_of(optimizer);
  } catch (const Error& error) {
    EXPECT_EQ(exit_code(error.kind()), 2);
    return error.text();
  }
  return "";
}

TEST(UnknownOptimizers, DoNotHideWhatIsWrongWithTheirParameters) {
  EXPECT_THAT(refusal(R"({"type": "AdmaW", "params": {"lr": -1, "betas": [0.9, 1.5], "mine": 1}})"),
              AllOf(HasSubstr("\"AdamW\""),
                    HasSubstr("optimizer.params.lr: expected at least 0, found -1"),
                    HasSubstr("optimizer.params.betas"),
                    Not(HasSubstr("optimizer.params.mine"))));
  EXPECT_THAT(refusal(R"({"type": "Sophiiia", "params": {"lr": -1, "rho": 0.04}})"),
              AllOf(HasSubstr("Sophiiia"),
                    HasSubstr("optimizer.params.lr"),
                    Not(HasSubstr("optimizer.params.rho"))));
  EXPECT_THAT(refusal(R"({"type": "Muno", "params": {"momentum": 2}})"),
              AllOf(HasSubstr("\"Muon\""), HasSubstr("optimizer.params.momentum")));
}

TEST(OptimizerParameters, ThatChooseNothingAreReported) {
  EXPECT_THAT(plan_of(R"({"type": "AdamW", "params": {"adam_w_mode": false}})").notes(),
              Contains(AllOf(HasSubstr("optimizer.params.adam_w_mode false has no effect"),
                             HasSubstr("AdamW decays the weights themselves"))));
  EXPECT_THAT(plan_of(R"({"type": "Muon", "params": {"ns_method": "standard"}})").notes(),
              Contains(HasSubstr("optimizer.params.ns_method is accepted but has no meaning")));
  EXPECT_THAT(plan_of(R"({"type": "Adam", "params": {"set_grad_none": true}})").notes(),
              Contains(HasSubstr("optimizer.params.set_grad_none is accepted but has no meaning")));
}

TEST(OptimizerParameters, ThatMatchWhatIsDoneAreNotReported) {
  EXPECT_THAT(optim::optimizer_notes(
                  {.type = "AdamW", .params = json::parse(R"({"adam_w_mode": true})", "c.json")}),
              IsEmpty());
  EXPECT_THAT(optim::optimizer_notes(
                  {.type = "Adam", .params = json::parse(R"({"adam_w_mode": false})", "c.json")}),
              IsEmpty());
}

TEST(OptimizerGroups, ThatShallNotFreezeAreRefused) {
  EXPECT_THAT(
      refusal(R"({"type": "OneBitAdam", "groups": [{"pattern": "ln", "non_freeze": true}]})"),
      AllOf(HasSubstr("optimizer.groups[0].non_freeze"), HasSubstr("not built yet")));
  EXPECT_EQ(refusal(R"({"type": "AdamW", "groups": [{"pattern": "ln", "non_freeze": false}]})"),
            "");
}

}  // namespace
}  // namespace tessera::planner
