// SPDX-License-Identifier: Apache-2.0
// A program's own model in place of the section `model`.
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/nn/step_context.h"
#include "tessera/parallel/layout.h"
#include "tessera/planner/data_plan.h"
#include "tessera/planner/make_plan.h"
#include "tessera/planner/memory.h"
#include "tessera/planner/model_plan.h"
#include "tessera/planner/plan.h"

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

  EXPECT_EQ(plan.model().resolved.num_parameters, 5 * 7 * 2 + 3);
  EXPECT_EQ(plan.layout().recompute.blocks, (std::vector<bool>{true, true}));
  EXPECT_TRUE(plan.model().rules.frozen("first.weight"));
  EXPECT_FALSE(plan.model().rules.frozen("second.weight"));
  EXPECT_EQ(plan.resolved().find("model")->find("second.weight")->dump(), "[5,7]");
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
  EXPECT_EQ(plan.layout().stages.bounds, (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(nn::declared_by(plan.model().resolved.model.blocks.back()).front()->name,
            "second.weight");
  EXPECT_EQ(made, 2);
}

TEST(OwnModel, RefusesAModelSectionTogetherWithIt) {
  const json::Value source = source_of(
      R"({"model": {"preset": "nano"}, "data": {"train": "a.txt"}, "train_batch_size": 4})");

  try {
    make_plan(source, 1, "own.json", own_model());
    FAIL() << "was taken";
  } catch (const Error& error) {
    EXPECT_THAT(error.text(), AllOf(HasSubstr("model"), HasSubstr("of its own")));
  }
}

/// [B, 64] x [64, 64], and at the end the sum of its squares.
class Square final : public nn::Objective {
 public:
  void declare(nn::Params& params) override {
    weight_ = params.add("weight", {64, 64}, {None, None}, Init::zeros());
  }
  nn::Outcome forward(nn::Flow in, const nn::Batch& batch, nn::StepContext& context) override {
    const at::Tensor x = in.diff.empty() ? batch.tensor("pixels") : in.diff[0];
    nn::Outcome out;
    out.flow.diff = {at::matmul(x, weight_->tensor())};
    if (context.block_name == "last") out.terms = {{"loss", out.flow.diff[0].square().sum()}};
    return out;
  }
  [[nodiscard]] std::vector<double> denominators(const nn::Batch& batch) const override {
    return {static_cast<double>(batch.size())};
  }

 private:
  Param* weight_ = nullptr;
};

TEST(OwnModel, HasItsActivationsPredictedOnceTheDataIsKnown) {
  const auto make = [] { return std::make_unique<Square>(); };
  const nn::Model model = {{{"first", make}, {"middle", make}, {"last", make}}};
  const auto plan_of = [&](int micro_batch) {
    return make_plan(source_of(R"({"data": {"train": "a.txt", "sequence_length": 8},
                         "train_batch_size": )" +
                               std::to_string(micro_batch) + "}"),
                     1,
                     "own.json",
                     model);
  };
  const auto need_of = [&](int micro_batch) {
    const Plan plan = plan_of(micro_batch);
    DataPlan data = plan.data();
    data.sample = {{.name = "pixels", .dtype = DType::F32, .shape = {64}}};
    return estimate_memory(with(plan, std::move(data)));
  };
  EXPECT_THAT(estimate_memory(plan_of(32)).text(), HasSubstr("not predicted"));

  const MemoryEstimate need = need_of(32);
  EXPECT_EQ(need.unknown, "");
  // At least the batch, the outputs of two blocks and their gradients.
  EXPECT_GT(need.activations, 4 * 32 * 64 * 4);
  // All memory grows with the samples, except the gradient of one matrix, which a matmul computes
  // before it is added to the block's; it is less than what 32 samples need.
  const std::int64_t more = need_of(64).activations;
  EXPECT_LE(more, 2 * need.activations);
  EXPECT_GT(2 * more, 3 * need.activations);
}

}  // namespace
}  // namespace tessera::planner
