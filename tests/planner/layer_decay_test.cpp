// SPDX-License-Identifier: Apache-2.0
// Rates of layers, by ELECTRA's formula.
#include "tessera/parallel/layer_decay.h"

#include <optional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/planner/make_plan.h"
#include "tessera/planner/model_plan.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/recipe.h"

namespace tessera::planner {
namespace {

using testing::AllOf;
using testing::HasSubstr;

Plan plan_of(const std::string& optimizer, const std::string& task = "\"pretrain\"") {
  const std::string text = R"({"model": {"family": "gpt2", "num_layers": 2, "hidden_size": 32,
      "num_heads": 2}, "data": {"train": "a.txt", "sequence_length": 64}, "train_batch_size": 4,
      "task": )" + task + R"(, "optimizer": )" +
                           optimizer + "}";
  return make_plan(json::parse(text, "c.json"), 1, "c.json");
}

std::optional<double> scale(const Plan& plan, const std::string& name) {
  for (const auto& info : nn::parameters_of(plan.model().resolved.model)) {
    if (info->name == name)
      return settings_of(plan.recipe(), plan.model(), make_rule(plan.recipe())->base_lr())(*info)
          .lr_scale;
  }
  ADD_FAILURE() << name << " is not a parameter";
  return {};
}

TEST(LayerDecay, LowersTheRateFromLayerToLayer) {
  const Plan plan = plan_of(R"({"type": "AdamW", "layer_decay": 0.5})");

  // Two layers: the objective, which has the final norm, is at depth 4.
  EXPECT_EQ(scale(plan, "ln_f.weight"), 1.0);
  EXPECT_EQ(scale(plan, "h.1.mlp.c_fc.weight"), 0.25);
  EXPECT_EQ(scale(plan, "h.0.ln_1.bias"), 0.125);
  EXPECT_EQ(scale(plan, "wte.weight"), 0.0625);  // tied to the head: of the first that uses it
  EXPECT_EQ(scale(plan, "wpe.weight"), 0.0625);
}

TEST(LayerDecay, LeavesGroupsTheirRates) {
  const Plan plan = plan_of(R"({"type": "AdamW", "params": {"lr": 0.5}, "layer_decay": 0.5,
      "groups": [{"pattern": "^h.0", "lr": 0.125}, {"pattern": "^h.1", "weight_decay": 0}]})");

  EXPECT_EQ(scale(plan, "h.0.ln_1.bias"), 0.25);
  EXPECT_EQ(scale(plan, "h.1.ln_1.bias"), 0.25);  // the factor of the layer
}

TEST(LayerDecay, OfOneLeavesAllRates) {
  EXPECT_FALSE(scale(plan_of(R"({"type": "AdamW", "layer_decay": 1})"), "wte.weight"));
  EXPECT_FALSE(scale(plan_of(R"({"type": "AdamW"})"), "wte.weight"));
}

TEST(LayerDecay, IsRefusedWhereItCannotBeFollowed) {
  const auto refusal = [](const std::string& optimizer) -> std::string {
    try {
      plan_of(optimizer);
    } catch (const Error& error) {
      return error.text();
    }
    return "";
  };
  EXPECT_THAT(refusal(R"({"type": "Adafactor", "layer_decay": 0.9})"),
              AllOf(HasSubstr("optimizer.layer_decay"), HasSubstr("makes its rate by itself")));
  EXPECT_THAT(refusal(R"({"type": "AdamW", "layer_decay": 0})"), HasSubstr("more than 0"));
  EXPECT_THAT(refusal(R"({"type": "AdamW", "layer_decay": 1.5})"), HasSubstr("at most 1"));
}

TEST(LayerDecay, ReachesTheObjectiveWithAFactorOfOne) {
  const Plan plan = plan_of(R"({"type": "AdamW"})");
  nn::Model model = plan.model().resolved.model;
  // In a model of fewer blocks, the last block is taken for the objective and has a factor of 1.
  const auto factors = parallel::layer_factors(model, 0.5);
  for (const auto& info : nn::declared_by(model.blocks.back()))
    EXPECT_EQ(factors.at(info->name), info->tied ? 0.0625 : 1.0) << info->name;
  model.blocks.resize(2);
  EXPECT_EQ(parallel::layer_factors(model, 0.5).at("h.0.ln_1.bias"), 1.0);
}

}  // namespace
}  // namespace tessera::planner
