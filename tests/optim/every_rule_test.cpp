// SPDX-License-Identifier: Apache-2.0
// Properties of every registered rule, whatever its formula.
#include <set>
#include <string>
#include <vector>

#include "optim/rules.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/dtype.h"

namespace tessera::optim {
namespace {

constexpr std::int64_t kRows = 47, kColumns = 67;  // 3149 elements: three chunks and a rest

/// Parameters that a rule requires in addition to its defaults.
std::string required(const std::string& type) {
  if (type.rfind("Mu", 0) != 0 || type == "Muon") return "";
  return R"("hidden_size": 64, "base_hidden_size": 16)";
}
std::string with(const std::string& type, const std::string& more) {
  const std::string first = required(type);
  return "{" + first + (first.empty() || more.empty() ? "" : ", ") + more + "}";
}

std::vector<ParamFacts> kinds() {
  return {matrix_of(kRows, kColumns), table_of(kRows, kColumns), vector_of(kRows * kColumns)};
}

class EveryRule : public testing::TestWithParam<std::string> {};

TEST_P(EveryRule, GivesTheSameBitsInShardsAsWhole) {
  const auto rule = rule_of(GetParam(), with(GetParam(), ""));
  for (const ParamFacts& facts : kinds()) {
    SCOPED_TRACE(facts.name);
    test::DrivenParam whole(*rule, facts, random_floats(facts.numel(), 1));
    test::DrivenParam halves = whole, shards = whole;
    halves.cut_at({1024});
    shards.cut_at({1024, 2048, 3072});

    for (int t = 1; t <= 3; ++t) {
      const std::vector<float> grad = random_floats(facts.numel(), 10 + static_cast<unsigned>(t));
      for (test::DrivenParam* param : {&whole, &halves, &shards})
        param->update(grad, {.lr = rule->base_lr(), .grad_scale = 0.7, .step = t});
    }

    EXPECT_NE(whole.master(), random_floats(facts.numel(), 1));
    EXPECT_EQ(whole.master(), halves.master());
    EXPECT_EQ(whole.master(), shards.master());
    EXPECT_EQ(whole.all_states(), shards.all_states());
  }
}

TEST_P(EveryRule, WritesTheRoundedMasterAsWorkingCopyAndIsNotMovedByIt) {
  const auto rule = rule_of(GetParam(), with(GetParam(), ""));
  for (const ParamFacts& facts : kinds()) {
    SCOPED_TRACE(facts.name);
    test::DrivenParam alone(*rule, facts, random_floats(facts.numel(), 1));
    test::DrivenParam mixed = alone, half = alone;
    mixed.keep_working_copy();
    half.keep_working_copy(DType::F16);
    const std::vector<float> grad = random_floats(facts.numel(), 2);

    alone.update(grad, {.lr = rule->base_lr(), .step = 1});
    mixed.update(grad, {.lr = rule->base_lr(), .step = 1});
    half.update(grad, {.lr = rule->base_lr(), .step = 1});

    EXPECT_EQ(alone.master(), mixed.master());
    EXPECT_EQ(alone.master(), half.master());
    for (std::size_t i = 0; i < mixed.working().size(); ++i) {
      ASSERT_EQ(mixed.working()[i], to_bf16(mixed.master()[i])) << i;
      ASSERT_EQ(half.working()[i], to_fp16(half.master()[i])) << i;
    }
  }
}

TEST_P(EveryRule, StandsStillAtARateOfZero) {
  const auto rule = rule_of(GetParam(), with(GetParam(), ""));
  for (const ParamFacts& facts : kinds()) {
    test::DrivenParam param(*rule, facts, random_floats(facts.numel(), 1));
    const std::vector<float> before = param.master();

    param.update(random_floats(facts.numel(), 2), {.lr = 0.0, .step = 1});

    EXPECT_EQ(param.master(), before) << facts.name;
  }
}

TEST_P(EveryRule, NamesItsStatesOnceAndMeansWholeTensorsWhereItKeepsRowsOrColumns) {
  const auto rule = rule_of(GetParam(), with(GetParam(), ""));
  for (const ParamFacts& facts : kinds()) {
    std::set<std::string> names;
    for (const StateSpec& spec : rule->state(facts)) {
      EXPECT_TRUE(names.insert(spec.name).second) << spec.name;
      EXPECT_EQ(spec.dtype, DType::F32);
      EXPECT_TRUE(spec.extent == Extent::Elements || rule->scope(facts) == Scope::WholeTensor);
    }
  }
}

TEST_P(EveryRule, ReportsItsWeightDecay) {
  EXPECT_EQ(rule_of(GetParam(), with(GetParam(), "\"weight_decay\": 0.25"))->base_weight_decay(),
            0.25);
  const bool decays = GetParam() == "FusedLAMB" || GetParam().starts_with("AdamW") ||
                      GetParam().starts_with("PagedAdamW");
  EXPECT_EQ(rule_of(GetParam(), with(GetParam(), ""))->base_weight_decay(), decays ? 0.01 : 0.0);
}

TEST_P(EveryRule, RefusesWrongParametersAtTheirPlaces) {
  for (const std::string wrong : {"\"lr\": -0.1",
                                  "\"lr\": \"fast\"",
                                  "\"weight_decay\": -1",
                                  "\"maximize\": true",
                                  "\"max_grad_norm\": 1.0"}) {
    const auto made = make_rule(GetParam(), with(GetParam(), wrong));
    ASSERT_EQ(made.problems.list().size(), 1U) << wrong;
    EXPECT_GT(made.problems.list()[0].place.line, 0) << wrong;
  }
}

TEST_P(EveryRule, SendsClippingToItsOwnKey) {
  const auto made = make_rule(GetParam(), with(GetParam(), "\"max_grad_norm\": 0.5"));

  ASSERT_EQ(made.problems.list().size(), 1U);
  EXPECT_THAT(made.problems.list()[0].fix, testing::HasSubstr("\"gradient_clipping\": 0.5"));
}

TEST(RulesWithBetas, RefuseTheWrongNumberOfThemAndOnesOutOfRange) {
  int checked = 0;
  for (const std::string& type : rules().names()) {
    if (!make_rule(type, with(type, "\"betas\": [0.5, 0.5]")).problems.empty()) continue;
    for (const std::string wrong : {"[0.9, 1.0]", "[0.9]", "[-0.1, 0.9]", "0.9"}) {
      const auto made = make_rule(type, with(type, "\"betas\": " + wrong));
      EXPECT_EQ(made.problems.list().size(), 1U) << type << " " << wrong;
    }
    ++checked;
  }

  EXPECT_EQ(checked, 23);  // all but Adagrad, Adafactor, LARS, MuSGD, RMSprop and SGD
}

INSTANTIATE_TEST_SUITE_P(All, EveryRule, testing::ValuesIn(rules().names()), [](const auto& info) {
  return info.param;
});

}  // namespace
}  // namespace tessera::optim
