// SPDX-License-Identifier: Apache-2.0
// Rates and weight decays of groups, and schedules of the optimizer that they follow.
#include "tessera/parallel/param_groups.h"

#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/interop/weights_of.h"
#include "tessera/planner/make_plan.h"
#include "tessera/planner/model_plan.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/recipe.h"

namespace tessera::planner {
namespace {

using testing::AllOf;
using testing::HasSubstr;

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
    EXPECT_EQ(error.kind(), Error::Kind::Config);
    return error.text();
  }
  return "";
}

/// The setting of the parameter with this name.
parallel::ParamSetting setting(const Plan& plan, const std::string& name) {
  for (const auto& info : nn::parameters_of(plan.model().resolved.model)) {
    if (info->name == name)
      return settings_of(plan.recipe(), plan.model(), make_rule(plan.recipe())->base_lr())(*info);
  }
  ADD_FAILURE() << name << " is not a parameter";
  return {};
}

TEST(RatesOfGroups, AreMultiplesOfTheOptimizers) {
  const Plan plan = plan_of(R"({"type": "AdamW", "params": {"lr": 0.5},
      "groups": [{"pattern": "wte", "lr": 0.125}, {"pattern": "wpe", "lr": 0}]})");

  EXPECT_EQ(setting(plan, "wte.weight").lr_scale, 0.25);
  EXPECT_EQ(setting(plan, "wpe.weight").lr_scale, 0.0);
  EXPECT_FALSE(setting(plan, "ln_f.weight").lr_scale.has_value());
}

// A pattern whose search takes exponential time ends after some steps.
TEST(PatternsOfGroups, HaveALimitOfSteps) {
  EXPECT_THAT(
      refusal(R"({"type": "AdamW", "groups": [{"pattern": "(((.|.)+)+)+[!?]", "lr": 0.1}]})"),
      AllOf(HasSubstr("takes more than 10 million steps"), HasSubstr("c.json:")));
  const Plan plan = plan_of(R"({"type": "AdamW", "params": {"lr": 0.5},
      "groups": [{"pattern": "^h\\.[01]\\.(ln_\\d|bias).*", "lr": 0.25}]})");
  EXPECT_EQ(setting(plan, "h.0.ln_1.weight").lr_scale, 0.5);
  EXPECT_FALSE(setting(plan, "ln_f.bias").lr_scale.has_value());
}

TEST(RatesOfGroups, AreRefusedIfTheBaseRateIsZero) {
  EXPECT_THAT(refusal(R"({"type": "AdamW", "params": {"lr": 0},
                          "groups": [{"pattern": "ln"}, {"pattern": "wpe", "lr": 0.001}]})"),
              AllOf(HasSubstr("c.json:3:"),
                    HasSubstr("optimizer.groups[1].lr: 0.001 is not a multiple of"),
                    HasSubstr("\"frozen\": true")));

  const Plan still =
      plan_of(R"({"type": "AdamW", "params": {"lr": 0}, "groups": [{"pattern": "wpe", "lr": 0}]})");
  EXPECT_EQ(setting(still, "wpe.weight").lr_scale, 0.0);
}

TEST(RatesOfGroups, AreRefusedWhereTheOptimizerMakesItsOwn) {
  const std::string groups = R"("groups": [{"pattern": "wpe", "lr": 0.001}]})";

  EXPECT_THAT(refusal(R"({"type": "Adafactor", )" + groups),
              AllOf(HasSubstr("optimizer.groups[0].lr"), HasSubstr("makes its rate by itself")));
  EXPECT_EQ(
      refusal(R"({"type": "Adafactor", "params": {"lr": 0.01, "relative_step": false}, )" + groups),
      "");
  EXPECT_EQ(refusal(R"({"type": "Adafactor", "groups": [{"pattern": "wpe", "weight_decay": 1}]})"),
            "");
}

/// The names of the parameters that are trained.
std::vector<std::string> trained_by(const std::string& patterns) {
  const Plan plan = plan_of(R"({"type": "AdamW", "trained": )" + patterns + "}");
  return parallel::trained_names(plan.model().resolved.model, plan.model().groups);
}

TEST(TrainedTensors, AreNamedAsInHuggingFacesFiles) {
  EXPECT_THAT(trained_by(R"(["\\.h\\.1\\.mlp\\.", "^transformer\\.wte\\.weight$"])"),
              testing::UnorderedElementsAre("wte.weight",
                                            "h.1.mlp.c_fc.weight",
                                            "h.1.mlp.c_fc.bias",
                                            "h.1.mlp.c_proj.weight",
                                            "h.1.mlp.c_proj.bias"));
  EXPECT_EQ(trained_by(R"(["."])").size(), trained_by("[]").size());
  EXPECT_THAT(refusal(R"({"type": "AdamW", "trained": ["no_such"]})"),
              HasSubstr("\"no_such\" matches no tensor"));
  EXPECT_THAT(refusal(R"({"type": "AdamW", "trained": ["("]})"),
              HasSubstr("not a valid regular expression"));
}

/// The factor of the last update, and of the first, on every weight decay.
std::pair<double, double> factors(const std::string& optimizer) {
  const Plan plan = plan_of(optimizer);
  const optim::DecayRamp ramp = make_decay_ramp(plan.recipe(), {}, plan.model().groups);
  return {ramp.factor(5), ramp.factor(1)};
}

TEST(WeightDecaySchedules, MoveTheDefaultOfTheOptimizer) {
  const std::string schedule =
      R"("weight_decay_schedule": {"style": "linear", "end": 0.08, "steps": 4}})";

  EXPECT_EQ(factors(R"({"type": "AdamW", )" + schedule), std::pair(8.0, 1.0));
  EXPECT_EQ(factors(R"({"type": "FusedLAMB", )" + schedule), std::pair(8.0, 1.0));
  EXPECT_EQ(factors(R"({"type": "Muon", "params": {"adam_weight_decay": 0.01}, )" + schedule),
            std::pair(8.0, 1.0));
}

TEST(WeightDecaySchedules, MoveTheLargestOfGroupsWhereTheOptimizerHasNone) {
  const std::string schedule =
      R"("weight_decay_schedule": {"style": "linear", "start": 0, "end": 0.5, "steps": 4}})";

  EXPECT_EQ(factors(R"({"type": "Adam", "groups": [{"pattern": "wte", "weight_decay": 0.125},
                        {"pattern": "wpe", "weight_decay": 0.25}], )" +
                    schedule),
            std::pair(2.0, 0.0));
  EXPECT_THAT(refusal(R"({"type": "Adam", )" + schedule),
              HasSubstr("the optimizer has no weight decay"));
}

}  // namespace
}  // namespace tessera::planner
