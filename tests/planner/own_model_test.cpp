// SPDX-License-Identifier: Apache-2.0
// A program's own model in place of the section `model`.
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/planner/train_config.h"

namespace tessera::planner {
namespace {

using enum LogicalAxis;

using testing::AllOf;
using testing::HasSubstr;

json::Value source_of(const std::string& text) {
  return json::parse(text, "own.json");
}

class OwnBlock final : public nn::Objective {
 public:
  void declare(nn::Params& params) override {
    params.add("weight", {5, 7}, {None, None}, Init::zeros());
    params.tied("shared", {3}, {None}, Init::zeros());
  }
  nn::Outcome forward(nn::Flow /*in*/,
                      const nn::Batch& /*batch*/,
                      nn::StepContext& /*context*/) override {
    return {};
  }
  [[nodiscard]] std::vector<double> denominators(const nn::Batch& /*batch*/) const override {
    return {1.0};
  }
};

nn::Model own_model() {
  const auto make = [] { return std::make_unique<OwnBlock>(); };
  return {{{"first", make}, {"second", make}}};
}

TEST(OwnModel, IsShardedAndRunTwiceAsTheConfigurationSays) {
  const json::Value source = source_of(R"({"data": {"train": "a.txt", "sequence_length": 8},
      "train_batch_size": 4, "activation_checkpointing": {"enabled": true},
      "optimizer": {"groups": [{"pattern": "first", "frozen": true}]}})");
  const Plan plan = make_plan(source, 1, "own.json", own_model());

  EXPECT_EQ(plan.model.num_parameters, 5 * 7 * 2 + 3);
  EXPECT_EQ(plan.recompute.blocks, (std::vector<bool>{true, true}));
  EXPECT_TRUE(plan.weight_layout.frozen("first.weight"));
  EXPECT_FALSE(plan.weight_layout.frozen("second.weight"));
  EXPECT_EQ(plan.resolved.find("model")->find("second.weight")->dump(), "[5,7]");
}

/// Whatever the plan asks of the blocks, and every rank that builds its stage of them.
TEST(OwnModel, HasEachBlockMadeOnceToSeeWhatItDeclares) {
  int made = 0;
  const auto make = [&made] {
    ++made;
    return std::make_unique<OwnBlock>();
  };
  const json::Value source = source_of(R"({"data": {"train": "a.txt", "sequence_length": 8},
      "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 4,
      "parallel": {"pipeline": {"size": 2, "partition": "parameters"}}})");

  const Plan plan = make_plan(source, 2, "own.json", {{{"first", make}, {"second", make}}});

  EXPECT_EQ(made, 2);
  EXPECT_EQ(plan.stages.bounds, (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(nn::declared_by(plan.model.model.blocks.back()).front()->name, "second.weight");
  EXPECT_EQ(made, 2);
}

TEST(OwnModel, RefusesAModelSectionBesideIt) {
  const json::Value source = source_of(
      R"({"model": {"preset": "nano"}, "data": {"train": "a.txt"}, "train_batch_size": 4})");

  try {
    make_plan(source, 1, "own.json", own_model());
    FAIL() << "was taken";
  } catch (const Error& error) {
    EXPECT_THAT(error.text(), AllOf(HasSubstr("model"), HasSubstr("of its own")));
  }
}

}  // namespace
}  // namespace tessera::planner
