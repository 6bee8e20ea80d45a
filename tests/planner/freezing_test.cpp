// SPDX-License-Identifier: Apache-2.0
// Which parameters a configuration trains when.
#include "tessera/parallel/freezing.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/planner/make_plan.h"
#include "tessera/planner/model_plan.h"
#include "tessera/planner/plan.h"

namespace tessera::planner {
namespace {

using testing::AllOf;
using testing::HasSubstr;

Plan plan_of(const std::string& optimizer, const std::string& more = "") {
  const std::string text = R"({"model": {"family": "gpt2", "num_layers": 3, "hidden_size": 32,
      "num_heads": 2}, "data": {"train": "a.txt", "sequence_length": 64}, "train_batch_size": 4,
      "optimizer": )" + optimizer +
                           more + "}";
  return make_plan(json::parse(text, "c.json"), 1, "c.json");
}

std::string refusal(const std::string& optimizer, const std::string& more = "") {
  try {
    (void)plan_of(optimizer, more);
  } catch (const Error& error) {
    return std::string(error.what()) + "\n" + error.fix();
  }
  return "";
}

bool frozen(const Plan& plan, const std::string& name, const parallel::Progress& now) {
  const int set = plan.model().freezing.set_of(name);
  return set > 0 && plan.model().freezing.frozen_sets(now).at(static_cast<std::size_t>(set) - 1);
}

TEST(Freezing, ThawsFromTheLastLayerToTheFirst) {
  const Plan plan = plan_of(R"({"gradual_unfreezing": {"every": 10}})");

  // The head's table is tied to the embedding, which precedes the layers.
  const std::vector<std::string> order = {
      "ln_f.weight", "h.2.ln_1.weight", "h.1.mlp.c_fc.weight", "h.0.ln_2.bias", "wpe.weight"};
  for (std::size_t i = 0; i < order.size(); ++i) {
    SCOPED_TRACE(order[i]);
    const auto thaws = static_cast<std::int64_t>(10 * i);
    EXPECT_FALSE(frozen(plan, order[i], {.steps = thaws, .epoch = 0}));
    if (i > 0) {
      EXPECT_TRUE(frozen(plan, order[i], {.steps = thaws - 1, .epoch = 0}));
    }
  }
  EXPECT_EQ(plan.model().freezing.set_of("wte.weight"), plan.model().freezing.set_of("wpe.weight"));
}

TEST(Freezing, ThawsSeveralLayersAtATimeByEpochs) {
  const Plan plan = plan_of(R"({"gradual_unfreezing": {"every": "2 epochs", "layers": 2}})");

  EXPECT_TRUE(frozen(plan, "h.1.ln_1.weight", {.steps = 900, .epoch = 1}));
  EXPECT_FALSE(frozen(plan, "h.1.ln_1.weight", {.steps = 3, .epoch = 2}));
  EXPECT_FALSE(frozen(plan, "h.2.ln_1.weight", {.steps = 3, .epoch = 2}));
  EXPECT_TRUE(frozen(plan, "h.0.ln_1.weight", {.steps = 900, .epoch = 3}));
  EXPECT_FALSE(frozen(plan, "h.0.ln_1.weight", {.steps = 900, .epoch = 4}));
  EXPECT_FALSE(frozen(plan, "wte.weight", {.steps = 900, .epoch = 4}));
}

TEST(Freezing, GroupsHaveTheirOwnSchedule) {
  const Plan plan = plan_of(R"({"gradual_unfreezing": {"every": 10}, "groups": [
      {"pattern": "^wpe", "frozen_until": 3, "frozen_from": "epoch"},
      {"pattern": "^wte", "frozen": true}, {"pattern": "^h.0", "lr": 1e-4}]})");

  EXPECT_TRUE(frozen(plan, "wpe.weight", {.steps = 2, .epoch = 0}));
  EXPECT_FALSE(frozen(plan, "wpe.weight", {.steps = 3, .epoch = 0}));
  EXPECT_TRUE(frozen(plan, "wpe.weight", {.steps = 3, .epoch = 1}));
  EXPECT_TRUE(plan.model().rules.frozen("wte.weight"));
  EXPECT_EQ(plan.model().freezing.set_of("wte.weight"), 0);
  EXPECT_TRUE(frozen(plan, "h.0.ln_1.weight", {.steps = 29, .epoch = 0}));
  EXPECT_THAT(plan.notes(), testing::Contains("frozen until step 3 and from 1 epoch: wpe.weight"));
}

TEST(Freezing, RefusesWhatHasNoEffectOrIsNotBuilt) {
  EXPECT_THAT(refusal(R"({"groups": [{"pattern": "wpe", "frozen_until": "3 steps"}]})"),
              AllOf(HasSubstr("optimizer.groups[0].frozen_until"), HasSubstr("\"3 steps\"")));
  EXPECT_THAT(refusal(R"({"gradual_unfreezing": {"every": 0}})"),
              HasSubstr("optimizer.gradual_unfreezing.every"));
  EXPECT_THAT(refusal(R"({"gradual_unfreezing": {"layers": 2}})"), HasSubstr("has no effect"));
  EXPECT_THAT(refusal(R"({"groups": [{"pattern": "wpe", "frozen": true, "frozen_from": 3}]})"),
              HasSubstr("for the whole training"));
  EXPECT_THAT(refusal(R"({"groups": [{"pattern": "wpe", "frozen_until": 5, "frozen_from": 5}]})"),
              HasSubstr("never trained"));
  EXPECT_THAT(refusal(R"({"groups": [{"pattern": ".", "frozen_until": 5}]})"),
              HasSubstr("frozen at the beginning"));
  EXPECT_THAT(refusal(R"({"groups": [{"pattern": ".", "frozen_from": 5}]})"),
              HasSubstr("frozen at the end"));
  EXPECT_THAT(refusal(R"({"type": "Adafactor", "gradual_unfreezing": {"every": 5}})"),
              HasSubstr("factored states"));
  EXPECT_THAT(refusal(R"({"type": "OneBitAdam", "gradual_unfreezing": {"every": 5}})"),
              HasSubstr("compressed exchanges"));
  EXPECT_THAT(
      refusal(R"({"gradual_unfreezing": {"every": 5}})", R"(, "adapter": {"type": "lora"})"),
      HasSubstr("parameters of an adapter"));
}

}  // namespace
}  // namespace tessera::planner
