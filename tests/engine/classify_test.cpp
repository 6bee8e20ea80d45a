// SPDX-License-Identifier: Apache-2.0
// A program's own model learns the labels of texts through the task "classify".
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "tessera/base/files.h"
#include "tessera/comm/world.h"
#include "tessera/engine/engine.h"
#include "tessera/engine/launch.h"
#include "tessera/nn/functional.h"
#include "tessera/planner/course.h"
#include "tessera/planner/make_plan.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/with_data.h"

namespace tessera::test {
namespace {

// Legend: B batch, T tokens, C channels, L labels.
constexpr std::int64_t kVocab = 256, kWidth = 8, kLabels = 2;

class Table final : public nn::Block {
 public:
  void declare(nn::Params& params) override {
    table_ = params.add(
        "weight", {kVocab, kWidth}, {LogicalAxis::Vocab, LogicalAxis::Embed}, Init::normal(0.2));
  }
  nn::Outcome forward(nn::Flow /*in*/, const nn::Batch& batch, nn::StepContext& context) override {
    at::Tensor x_BTC = nn::embedding(batch.tensor("input_ids"), *table_, context);
    if (batch.has("attention_mask"))
      x_BTC = x_BTC * batch.tensor("attention_mask").unsqueeze(2).to(x_BTC.scalar_type());
    return {.flow = {.diff = {x_BTC.sum(1)}}};
  }

 private:
  Param* table_ = nullptr;
};

class Classes final : public nn::Objective {
 public:
  void declare(nn::Params& params) override {
    weight_ = params.add(
        "weight", {kLabels, kWidth}, {LogicalAxis::None, LogicalAxis::Embed}, Init::normal(0.2));
  }
  nn::Outcome forward(nn::Flow in, const nn::Batch& batch, nn::StepContext& context) override {
    const at::Tensor logits_BL =
        nn::linear(in.diff.at(0), *weight_, nullptr, context).to(at::kDouble);
    const at::Tensor& label_B = batch.tensor("label");
    const at::Tensor loss = -logits_BL.log_softmax(1).gather(1, label_B.unsqueeze(1)).sum();
    const at::Tensor correct = logits_BL.detach().argmax(1).eq(label_B).sum(at::kDouble);
    return {.terms = {{.name = "loss", .sum = loss},
                      {.name = "accuracy", .sum = correct, .weight = 0.0}}};
  }
  [[nodiscard]] std::vector<double> denominators(const nn::Batch& batch) const override {
    return {static_cast<double>(batch.size())};
  }

 private:
  Param* weight_ = nullptr;
};

/// Texts of "a" and "b"; the label says which letter occurs more often.
std::string records() {
  std::string out;
  for (int i = 0; i < 64; ++i) {
    const bool more_b = i % 2 == 1;
    std::string text(static_cast<std::size_t>(3 + i % 5), more_b ? 'b' : 'a');
    text.back() = more_b ? 'a' : 'b';
    out += "{\"text\": \"" + text + "\", \"label\": \"" + (more_b ? "b" : "a") + "\"}\n";
  }
  return out;
}

TEST(Classification, IsLearntByAModelOfTheProgramsOwn) {
  engine::prepare_process(1);
  const files::TempDir folder;
  files::write_atomic(folder.path() / "texts.jsonl", records());
  json::Value source = json::parse(R"({"task": "classify",
      "data": {"sequence_length": 8, "validation_fraction": 0.25},
      "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2,
      "optimizer": {"params": {"lr": 0.05}}, "trainer": {"max_steps": 20},
      "run": {"threads_per_rank": 1}})",
                                   "classify.json");
  source["data"]["train"] = json::Value::string((folder.path() / "texts.jsonl").string());
  nn::Model model;
  model.blocks.push_back({"table", [] { return std::make_unique<Table>(); }});
  model.blocks.push_back({"classes", [] { return std::make_unique<Classes>(); }});
  const planner::Plan made = planner::make_plan(source, 2, "classify.json", model);
  const auto data = engine::open_data(made, {});
  const planner::PlanWithData plan = planner::with_data(made, *data);

  engine::StepReport first, last;
  engine::EvalReport held_out;
  comm::run_threads(plan.mesh(), [&](comm::World& world) {
    at::set_num_threads(1);
    engine::Engine engine(plan, world, data);
    engine.initialize_weights();
    engine::StepReport begin = engine.train_step(), end;
    while (engine.step() < plan.course().max_steps)
      end = engine.train_step();
    const engine::EvalReport report = engine.evaluate();
    if (world.is_leader()) {
      first = begin;
      last = end;
      held_out = report;
    }
    engine.finish();
    world.transport().barrier(world.everyone(), TESSERA_HERE("end of a test"))->wait();
  });

  EXPECT_LT(last.loss, 0.5 * first.loss);
  EXPECT_EQ(last.metrics.at(0).mean, last.loss);  // accuracy adds nothing to the loss
  EXPECT_EQ(last.metrics.at(1).name, "accuracy");
  EXPECT_EQ(last.metrics.at(1).mean, 1.0);
  EXPECT_EQ(held_out.metrics.at(1).mean, 1.0);
  EXPECT_EQ(held_out.metrics.at(1).denominator, 16);
}

}  // namespace
}  // namespace tessera::test
