// SPDX-License-Identifier: Apache-2.0
// mu-P's rates: each Mu rule gives a parameter the bits of its plain rule at the rate of the table.
#include <string>
#include <vector>

#include "optim/rules.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera::optim {
namespace {

// width_mult 4: factors that are powers of two keep every bit.
const std::string kMu = R"({"hidden_size": 256, "base_hidden_size": 64, "lr": 0.5,
                            "weight_decay": 0.25)";

void expect_same(const Rule& mu, const Rule& plain, const ParamFacts& facts) {
  const std::vector<float> weights = random_floats(facts.numel(), 1);
  test::DrivenParam by_mu(mu, facts, weights), by_plain(plain, facts, weights);

  for (int t = 1; t <= 3; ++t) {
    const std::vector<float> grad = random_floats(facts.numel(), 10 + static_cast<unsigned>(t));
    by_mu.update(grad, {.lr = mu.base_lr(), .step = t});
    by_plain.update(grad, {.lr = plain.base_lr(), .step = t});
  }

  EXPECT_EQ(by_mu.master(), by_plain.master());
  EXPECT_EQ(by_mu.all_states(), by_plain.all_states());
}

TEST(MuAdamRule, DividesTheRateOfHiddenMatricesAndKeepsItsProductWithDecay) {
  const auto mu = rule_of("MuAdamW", kMu + "}");

  expect_same(*mu, *rule_of("Adam", R"({"lr": 0.125, "weight_decay": 1.0})"), matrix_of(30, 50));
  expect_same(*mu, *rule_of("Adam", R"({"lr": 0.5, "weight_decay": 0.25})"), table_of(30, 50));
  expect_same(*mu, *rule_of("Adam", R"({"lr": 0.5, "weight_decay": 0.25})"), vector_of(50));
}

TEST(MuAdamRule, DecaysThroughTheGradientAsTorchDoesUnlessItIsMuAdamW) {
  expect_same(*rule_of("MuAdam", kMu + "}"),
              *rule_of("Adam", R"({"lr": 0.125, "weight_decay": 1.0, "adam_w_mode": false})"),
              matrix_of(30, 50));
}

TEST(MuSgdRule, MultipliesTheRateOfAllButHiddenMatrices) {
  const auto mu = rule_of("MuSGD", kMu + R"(, "momentum": 0.9})");
  const auto as_given = rule_of("SGD", R"({"lr": 0.5, "weight_decay": 0.25, "momentum": 0.9})"),
             faster = rule_of("SGD", R"({"lr": 2.0, "weight_decay": 0.0625, "momentum": 0.9})");

  expect_same(*mu, *as_given, matrix_of(30, 50));
  expect_same(*mu, *faster, table_of(30, 50));
  expect_same(*mu, *faster, vector_of(50));
}

TEST(MuRules, NeedBothWidths) {
  for (const std::string type : {"MuAdam", "MuAdamW", "MuSGD"}) {
    EXPECT_THAT(make_rule(type, "{}").problems.list(), testing::SizeIs(2)) << type;
    EXPECT_THAT(make_rule(type, R"({"hidden_size": 64})").problems.list(), testing::SizeIs(1))
        << type;
    const auto misspelt = make_rule(type, R"({"hidden_size": 64, "base_hiden_size": 64})");
    std::string fixes;
    for (const auto& problem : misspelt.problems.list())
      fixes += problem.fix;
    EXPECT_THAT(fixes, testing::HasSubstr("\"base_hidden_size\"")) << type;
  }
}

}  // namespace
}  // namespace tessera::optim
