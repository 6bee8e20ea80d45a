// SPDX-License-Identifier: Apache-2.0
// Which task a configuration resolves to, and what is refused.
#include "tessera/tasks/task.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/planner/data_plan.h"
#include "tessera/planner/make_plan.h"
#include "tessera/planner/model_plan.h"
#include "tessera/planner/plan.h"

namespace tessera::planner {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

json::Value with(const std::string& task) {
  return json::parse(R"({"data": {"train": "a.jsonl", "sequence_length": 8},
                         "train_batch_size": 4)" +
                         (task.empty() ? "" : ", \"task\": " + task) + "}",
                     "c.json");
}

std::string refusal(const std::string& task) {
  try {
    make_plan(with(task), 1, "c.json");
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::Config);
    return error.text();
  }
  return "";
}

class Mine final : public nn::Objective {
 public:
  void declare(nn::Params& params) override {
    params.add("w", {2}, {LogicalAxis::None}, Init::zeros());
  }
  nn::Outcome forward(nn::Flow, const nn::Batch&, nn::StepContext&) override { return {}; }
  [[nodiscard]] std::vector<double> denominators(const nn::Batch&) const override { return {1}; }
};

TEST(Task, IsPretrainingUnlessNamed) {
  const Plan plan = make_plan(with(""), 1, "c.json");

  ASSERT_NE(plan.data().task, nullptr);
  EXPECT_EQ(plan.data().task->objective(), "causal_lm");
  EXPECT_EQ(plan.resolved().find("task")->find("type")->as_string(), "pretrain");
}

TEST(Task, IsSuggestedWhereItsNameIsUnknown) {
  EXPECT_THAT(refusal("\"pretrian\""), AllOf(HasSubstr("task.type"), HasSubstr("pretrain")));
  EXPECT_THAT(refusal(R"({"type": "pretrain", "params": {"labels": ["a"]}})"),
              HasSubstr("task.params.labels"));
}

// Two lines that are easily forgotten, or left over: the task, or the parameters of another one.
TEST(Task, IsNamedWhereAnotherTaskHasParameters) {
  EXPECT_THAT(refusal(R"("classify", "sft": {"loss_on": "all"})"),
              AllOf(HasSubstr("sft: has parameters of the task sft, and the task is classify"),
                    HasSubstr("set \"task\": \"sft\", or remove \"sft\""),
                    Not(HasSubstr("unknown key"))));
  EXPECT_THAT(refusal(R"({"type": "sft", "params": {}}, "sft": {"loss_on": "all"})"),
              AllOf(HasSubstr("and so has task.params"), Not(HasSubstr("unknown key"))));
  json::Value source = with("");
  source["sft"] = json::parse(R"({"loss_on": "all"})", "c.json");
  EXPECT_THAT([&] { make_plan(source, 1, "c.json"); },
              testing::ThrowsMessage<Error>(HasSubstr("the task sft, and the task is pretrain")));
}

TEST(Task, ChoosesTheObjectiveOfAFamilysModel) {
  for (const std::string family : {"gpt2", "llama"}) {
    json::Value source = with(R"({"type": "classify", "params": {"labels": ["a", "b", "c"]}})");
    source["model"] = json::Value::object({{"family", json::Value::string(family)}});

    const Plan plan = make_plan(source, 1, "c.json");

    bool scores = false, head = false;
    for (const auto& info : nn::parameters_of(plan.model().resolved.model)) {
      scores |= info->name == "score.weight" && info->shape.front() == 3;
      head |= info->name == "lm_head.weight";
    }
    EXPECT_TRUE(scores) << family;
    EXPECT_FALSE(head) << family;
  }
}

TEST(Task, OfAnyKindServesAModelOfTheProgramsOwn) {
  nn::Model model;
  model.blocks.push_back({"mine", [] { return std::make_unique<Mine>(); }});

  const Plan plan = make_plan(with("\"classify\""), 1, "c.json", model);

  EXPECT_EQ(plan.data().task->objective(), "sequence_classification");
  EXPECT_EQ(plan.resolved().find("task")->find("type")->as_string(), "classify");
}

}  // namespace
}  // namespace tessera::planner
