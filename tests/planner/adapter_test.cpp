// SPDX-License-Identifier: Apache-2.0
// The effect of the section `adapter` on a plan.
#include "tessera/planner/adapter.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/planner/make_plan.h"
#include "tessera/planner/memory.h"
#include "tessera/planner/model_plan.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/recipe.h"

namespace tessera::planner {
namespace {

using testing::HasSubstr;

Plan plan_with(const std::string& members, int ranks = 1) {
  const std::string text =
      R"({"model": {"preset": "nano"}, "data": {"train": "a.txt", "sequence_length": 64},
          "train_batch_size": 8, )" +
      members + "}";
  return make_plan(json::parse(text, "c.json"), ranks, "dir/my.json");
}

std::string refusal_of(const std::string& members, int ranks = 1) {
  try {
    (void)plan_with(members, ranks);
  } catch (const Error& error) {
    EXPECT_EQ(exit_code(error.kind()), 2);
    return error.text();
  }
  return "";
}

TEST(AdapterPlan, FreezesAllButTheAdapter) {
  const Plan plan = plan_with(R"("adapter": {"type": "lora", "r": 4, "targets": ["c_fc"]})");
  ASSERT_NE(plan.model().adapter, nullptr);
  EXPECT_EQ(plan.model().adapter->modules.size(), 4U);
  std::int64_t trained = 0;
  for (const auto& info : nn::parameters_of(plan.model().resolved.model)) {
    EXPECT_EQ(info->trainable, info->name.find("lora_") != std::string::npos) << info->name;
    trained += info->trainable ? info->numel() : 0;
  }
  EXPECT_EQ(trained, 4 * 4 * (128 + 512));
  EXPECT_NE(plan.resolved().find("adapter"), nullptr);
}

TEST(AdapterPlan, TrainsTheHeadOfARewardModelToo) {
  const Plan plan = plan_with(R"("task": "reward", "adapter": {"type": "lora"})");
  EXPECT_TRUE(plan.model().adapter->trains("score.weight"));
  EXPECT_FALSE(plan.model().adapter->trains("ln_f.weight"));
}

TEST(AdapterPlan, IsNotWrittenWithoutAnAdapter) {
  const Plan plan = plan_with(R"("trainer": {"max_steps": 1})");
  EXPECT_EQ(plan.model().adapter, nullptr);
  EXPECT_EQ(plan.resolved().find("adapter"), nullptr);
}

TEST(AdapterPlan, NeedsNoMomentsAndMastersOfTheRest) {
  const char* const adapter = R"("adapter": {"type": "lora", "r": 1, "targets": ["c_fc"]})";
  const std::string bf16 = R"("bf16": {"enabled": true})";
  const auto whole = estimate_memory(plan_with(bf16)),
             adapted = estimate_memory(plan_with(bf16 + ", " + adapter));
  EXPECT_LT(adapted.optimizer * 50, whole.optimizer);
  EXPECT_LT(adapted.gradients * 10, whole.gradients);
}

TEST(AdapterPlan, RaisesTheRateOfBAlone) {
  const Plan plan =
      plan_with(R"("adapter": {"type": "lora", "targets": ["c_fc"], "lr_ratio": 16})");
  const auto settings = settings_of(plan.recipe(), plan.model(), 1e-3);
  int raised = 0;
  for (const auto& [name, info] : plan.model().adapter->parameters) {
    const auto scale = settings(*info).lr_scale;
    const bool is_b = name.ends_with(".lora_B.weight");
    EXPECT_EQ(scale.value_or(1.0), is_b ? 16.0 : 1.0) << name;
    raised += is_b ? 1 : 0;
  }
  EXPECT_EQ(raised, 4);
}

TEST(AdapterPlan, RefusesWhatItCannotDo) {
  const auto refused = [](const std::string& members, const char* what, int ranks = 1) {
    EXPECT_THAT(refusal_of(members, ranks), HasSubstr(what)) << members;
  };
  refused(R"("adapter": {"r": 4})", "has no type");
  refused(R"("adapter": {"type": "ia3"})", "adapter.type");
  refused(R"("adapter": {"type": "lora", "targets": ["q_proj"]})", "no layer of the model");
  refused(R"("adapter": {"type": "lora", "targets": ["ln_1"]})",
          "is neither a linear layer nor an embedding");
  refused(R"("adapter": {"type": "dora", "targets": ["wte"]})", "is a table");
  refused(R"("adapter": {"type": "lora", "modules_to_save": ["head"]})", "no module head");
  refused(R"("adapter": {"type": "lora", "modules_to_save": ["wte"]})", "several places");
  refused(R"("adapter": {"type": "lora", "targets": ["wte"]},
             "parallel": {"tensor": {"mode": "2d", "size": 4}})",
          "on a grid of ranks",
          4);
}

}  // namespace
}  // namespace tessera::planner
