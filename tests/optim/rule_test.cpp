// SPDX-License-Identifier: Apache-2.0
#include "tessera/optim/rule.h"

#include <cmath>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "optim/rules.h"
#include "support/source_dir.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera::optim {
namespace {

using testing::HasSubstr;

/// One element after one update.
float updated(const Rule& rule, float weight, float grad, bool decay) {
  float exp_avg = 0.0F, exp_avg_sq = 0.0F;
  rule.update({.master = &weight,
               .grad = &grad,
               .state = {&exp_avg, &exp_avg_sq},
               .numel = 1,
               .decay = decay},
              {.lr = rule.base_lr(), .step = 1});
  return weight;
}

TEST(AdamRule, KeepsTwoMomentsAndReadsItsParameters) {
  const auto made = make_rule(
      "adamw",
      R"({"lr": 5e-4, "betas": [0.8, 0.9], "eps": 1e-6, "weight_decay": 0.2, "torch_adam": true})");

  ASSERT_TRUE(made.problems.empty());
  EXPECT_DOUBLE_EQ(made.rule->base_lr(), 5e-4);
  EXPECT_EQ(made.rule->scope({}), Scope::Elementwise);
  ASSERT_EQ(made.rule->state({}).size(), 2U);
  EXPECT_EQ(made.rule->state({})[0].name, "exp_avg");
  EXPECT_EQ(made.rule->state({})[1].name, "exp_avg_sq");
}

TEST(AdamRule, FirstStepMovesByTheRateAgainstTheGradient) {
  const auto made = make_rule("AdamW", R"({"lr": 0.01, "weight_decay": 0})");

  EXPECT_NEAR(updated(*made.rule, 1.0F, 3.0F, true), 0.99, 1e-7);
  EXPECT_NEAR(updated(*made.rule, 1.0F, -3.0F, true), 1.01, 1e-7);
}

TEST(AdamRule, DecayActsOnlyWhereTheViewAsksForIt) {
  const auto made = make_rule("AdamW", R"({"lr": 0.01, "weight_decay": 0.5})");

  EXPECT_NEAR(updated(*made.rule, 1.0F, 3.0F, true), 1.0 - 0.005 - 0.01, 1e-7);
  EXPECT_NEAR(updated(*made.rule, 1.0F, 3.0F, false), 1.0 - 0.01, 1e-7);
}

TEST(AdamRule, AdamDecaysTheWeightsUnlessConfiguredToDecayTheGradient) {
  const auto decoupled = make_rule("Adam", R"({"lr": 0.01, "weight_decay": 0.5})");
  const auto coupled =
      make_rule("Adam", R"({"lr": 0.01, "weight_decay": 0.5, "adam_w_mode": false})");

  EXPECT_NEAR(updated(*decoupled.rule, 1.0F, 3.0F, true), 1.0 - 0.005 - 0.01, 1e-7);
  EXPECT_NEAR(updated(*coupled.rule, 1.0F, 3.0F, true), 1.0 - 0.01, 1e-7);
}

// As in DeepSpeed and torch.
TEST(AdamRule, AdamWDecaysTheWeightsWithEitherSetting) {
  for (const std::string key : {"adam_w_mode", "adamw_mode"}) {
    const auto made =
        make_rule("AdamW", R"({"lr": 0.01, "weight_decay": 0.5, ")" + key + R"(": false})");

    ASSERT_TRUE(made.problems.empty());
    EXPECT_NEAR(updated(*made.rule, 1.0F, 3.0F, true), 1.0 - 0.005 - 0.01, 1e-7) << key;
  }
}

TEST(RuleParameters, TakeTheArgumentsOfDeepSpeedsConstructors) {
  for (const std::string type :
       {"Adam", "AdamW", "FusedAdam", "CPUAdam", "Lion", "Adagrad", "Lamb", "FusedLAMB"}) {
    EXPECT_TRUE(make_rule(type, R"({"set_grad_none": true, "fp32_optimizer_states": true,
                               "amsgrad": false})")
                    .problems.empty())
        << type;

    const auto refused = make_rule(type, R"({"amsgrad": true, "fp32_optimizer_states": false})");

    ASSERT_EQ(refused.problems.list().size(), 2U) << type;
    EXPECT_EQ(refused.problems.list()[0].path, "amsgrad");
    EXPECT_THAT(refused.problems.list()[0].what, HasSubstr("not built yet"));
    EXPECT_EQ(refused.problems.list()[1].path, "fp32_optimizer_states");
    EXPECT_THAT(refused.problems.list()[1].fix, HasSubstr("bf16.bf16_optimizer_states"));
  }
}

// The defaults of DeepSpeed's Lion: lr 1e-3, betas (0.9, 0.999).
TEST(LionRule, HasDeepSpeedsDefaults) {
  const auto plain = make_rule("Lion", "{}");
  const auto spelled =
      make_rule("Lion", R"({"lr": 1e-3, "betas": [0.9, 0.999], "weight_decay": 0})");

  EXPECT_DOUBLE_EQ(plain.rule->base_lr(), 1e-3);
  test::DrivenParam a(*plain.rule, vector_of(3), {1.0F, -2.0F, 0.5F});
  test::DrivenParam b(*spelled.rule, vector_of(3), {1.0F, -2.0F, 0.5F});
  for (int t = 1; t <= 2; ++t) {
    a.update({0.3F, -0.1F, 0.0F}, {.lr = 1e-3, .step = t});
    b.update({0.3F, -0.1F, 0.0F}, {.lr = 1e-3, .step = t});
  }
  EXPECT_EQ(a.master(), b.master());
  EXPECT_EQ(a.all_states(), b.all_states());
}

TEST(AdamRule, ParametersThatAreAbsentKeepDefaults) {
  const auto made = make_rule("AdamW", "{}");

  EXPECT_TRUE(made.problems.empty());
  EXPECT_DOUBLE_EQ(made.rule->base_lr(), 1e-3);
  EXPECT_NEAR(updated(*made.rule, 1.0F, 3.0F, true), 1.0 - 1e-3 * 0.01 - 1e-3, 1e-7);
}

TEST(AdamRule, AllProblemsAreReportedWithTheirPlaces) {
  const auto made = make_rule(
      "AdamW", "{\"lr\": \"fast\",\n \"betas\": [0.9],\n \"eps\": -1,\n \"wieght_decay\": 0.1}");

  EXPECT_EQ(made.problems.list().size(), 4U);
  std::string fixes;
  for (const auto& problem : made.problems.list()) {
    EXPECT_GT(problem.place.line, 0) << problem.path;
    fixes += problem.fix;
  }
  EXPECT_THAT(fixes, HasSubstr("weight_decay"));
}

TEST(AdamRule, AnswersToItsNamesElsewhereAndToBothSpellingsOfItsMode) {
  for (const std::string name : {"FusedAdam", "CPUAdam", "DeepSpeedCPUAdam", "HybridAdam"}) {
    const auto coupled =
        make_rule(name, R"({"lr": 0.01, "weight_decay": 0.5, "adamw_mode": false})");
    const auto decoupled =
        make_rule(name, R"({"lr": 0.01, "weight_decay": 0.5, "adamw_mode": true})");

    ASSERT_TRUE(coupled.problems.empty()) << name;
    EXPECT_NEAR(updated(*coupled.rule, 1.0F, 3.0F, true), 1.0 - 0.01, 1e-7) << name;
    EXPECT_NEAR(updated(*decoupled.rule, 1.0F, 3.0F, true), 1.0 - 0.005 - 0.01, 1e-7) << name;
  }
}

TEST(AdamRule, RefusesAModeThatIsGivenTwiceAndDiffers) {
  EXPECT_TRUE(make_rule("Adam", R"({"adam_w_mode": false, "adamw_mode": false})").problems.empty());
  EXPECT_EQ(
      make_rule("Adam", R"({"adam_w_mode": true, "adamw_mode": false})").problems.list().size(),
      1U);
}

TEST(SgdRule, RefusesNesterovWithoutMomentumOrWithDampening) {
  EXPECT_EQ(make_rule("SGD", R"({"nesterov": true})").problems.list().size(), 1U);
  EXPECT_EQ(make_rule("SGD", R"({"nesterov": true, "momentum": 0.9, "dampening": 0.1})")
                .problems.list()
                .size(),
            1U);
  EXPECT_TRUE(make_rule("SGD", R"({"nesterov": true, "momentum": 0.9})").problems.empty());
}

TEST(MomentumRules, RefuseAMomentumOfOne) {
  for (const std::string type : {"SGD", "RMSprop", "LARS", "Muon"}) {
    EXPECT_EQ(make_rule(type, R"({"momentum": 1.0})").problems.list().size(), 1U) << type;
    EXPECT_EQ(make_rule(type, R"({"momentum": -0.1})").problems.list().size(), 1U) << type;
  }
  EXPECT_EQ(make_rule("RMSprop", R"({"alpha": 1.0})").problems.list().size(), 1U);
}

TEST(LambRule, RefusesClampsThatCross) {
  EXPECT_EQ(make_rule("Lamb", R"({"min_coeff": 2, "max_coeff": 1})").problems.list().size(), 1U);
}

TEST(RuleNames, AreThese) {
  EXPECT_THAT(rules().names(),
              testing::ElementsAre("Adafactor",
                                   "Adagrad",
                                   "Adam",
                                   "Adam4bit",
                                   "Adam8bit",
                                   "Adamax",
                                   "AdamW",
                                   "AdamW4bit",
                                   "AdamW8bit",
                                   "CPUAdam",
                                   "DeepSpeedCPUAdam",
                                   "FusedAdam",
                                   "FusedLAMB",
                                   "HybridAdam",
                                   "Lamb",
                                   "LARS",
                                   "Lion",
                                   "MuAdam",
                                   "MuAdamW",
                                   "Muon",
                                   "MuSGD",
                                   "NAdam",
                                   "OneBitAdam",
                                   "OneBitLamb",
                                   "PagedAdam8bit",
                                   "PagedAdamW8bit",
                                   "RMSprop",
                                   "SGD",
                                   "ZeroOneAdam"));
}

TEST(RuleNames, AreInTheListOfOptimizers) {
  std::ifstream in(test::source_dir().string() + "/docs/optimizers.md");
  const std::string page((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());

  for (const std::string& name : rules().names())
    EXPECT_THAT(page, HasSubstr("`" + name + "`"));
}

TEST(RuleNames, GetTheNearestNameWhereTheyAreUnknown) {
  try {
    rule_factory("AdmaW");
    FAIL() << "a misspelt name was found";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::Config);
    EXPECT_THAT(error.fix(), HasSubstr("AdamW"));
  }
}

TEST(Clipping, ScalesOnlyWhatIsTooLong) {
  EXPECT_DOUBLE_EQ(clip_coefficient(5.0, 0.0), 1.0);
  EXPECT_DOUBLE_EQ(clip_coefficient(0.5, 1.0), 1.0);
  EXPECT_NEAR(clip_coefficient(4.0, 1.0), 0.25, 1e-6);
}

TEST(Clipping, NormIsTheRootOfTheSums) {
  const std::vector<double> sums = {9.0, 16.0};

  EXPECT_DOUBLE_EQ(gradient_norm(sums), 5.0);
}

TEST(Clipping, ANormThatIsNotFiniteStaysSo) {
  EXPECT_TRUE(std::isnan(gradient_norm(std::vector<double>{1.0, std::nan("")})));
}

}  // namespace
}  // namespace tessera::optim
