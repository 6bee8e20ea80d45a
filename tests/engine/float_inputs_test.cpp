// SPDX-License-Identifier: Apache-2.0
// A model of float tensors whose blocks add several terms to the loss trains, evaluates and reports
// the same in every layout.
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "support/train_runs.h"
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "tessera/base/philox.h"
#include "tessera/checkpoint/checkpoint.h"
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

// Legend: B batch, F features, H hidden features, O targets.
constexpr std::int64_t kFeatures = 6, kHidden = 8, kTargets = 3, kLayers = 3;
constexpr double kOfSize = 0.25;  // weight of the term "size"

class Points final : public data::Dataset {
 public:
  explicit Points(std::int64_t size) : size_(size) {}
  [[nodiscard]] std::string name() const override { return "points"; }
  [[nodiscard]] std::int64_t size() const override { return size_; }
  [[nodiscard]] std::vector<data::TensorSpec> tensors() const override {
    return {{.name = "x", .dtype = DType::F32, .shape = {kFeatures}},
            {.name = "y", .dtype = DType::F64, .shape = {kTargets}}};
  }
  void read(std::int64_t index, data::SampleWriter& out) const override {
    const Philox random{3};
    std::uint64_t at = static_cast<std::uint64_t>(index) * 16;
    float sum = 0;
    for (float& x : out.tensor<float>("x")) {
      x = static_cast<float>(random(at++)[0] % 1000) / 1000.0F;
      sum += x;
    }
    for (double& y : out.tensor<double>("y"))
      y = std::sin(static_cast<double>(sum) + static_cast<double>(at++ % 3));
  }

 private:
  std::int64_t size_;
};

/// tanh(x * weight), with the term "size" of its output.
class Layer final : public nn::Block {
 public:
  explicit Layer(std::int64_t in) : in_(in) {}
  void declare(nn::Params& params) override {
    weight_ = params.add(
        "weight", {kHidden, in_}, {LogicalAxis::None, LogicalAxis::None}, Init::normal(0.4));
  }
  nn::Outcome forward(nn::Flow in, const nn::Batch& batch, nn::StepContext& context) override {
    const at::Tensor x_BF = in.diff.empty() ? batch.tensor("x") : in.diff.at(0);
    const at::Tensor y_BH = at::tanh(nn::linear(x_BF, *weight_, nullptr, context));
    nn::Outcome out = {.flow = {.diff = {y_BH}}};
    out.terms.push_back({.name = "size",
                         .sum = y_BH.to(at::kDouble).square().sum(),
                         .denominator = 1,
                         .weight = kOfSize});
    return out;
  }

 private:
  std::int64_t in_;
  Param* weight_ = nullptr;
};

/// Squared errors, and absolute ones that are only reported.
class Errors final : public nn::Objective {
 public:
  void declare(nn::Params& params) override {
    weight_ = params.add(
        "weight", {kTargets, kHidden}, {LogicalAxis::None, LogicalAxis::None}, Init::normal(0.4));
  }
  nn::Outcome forward(nn::Flow in, const nn::Batch& batch, nn::StepContext& context) override {
    const at::Tensor error_BO =
        nn::linear(in.diff.at(0), *weight_, nullptr, context).to(at::kDouble) - batch.tensor("y");
    return {.terms = {{.name = "loss", .sum = error_BO.square().sum()},
                      {.name = "distance", .sum = error_BO.detach().abs().sum(), .weight = 0.0}}};
  }
  /// Targets; samples.
  [[nodiscard]] std::vector<double> denominators(const nn::Batch& batch) const override {
    return {static_cast<double>(batch.tensor("y").numel()), static_cast<double>(batch.size())};
  }

 private:
  Param* weight_ = nullptr;
};

nn::Model model() {
  nn::Model out;
  for (std::int64_t i = 0; i < kLayers; ++i) {
    const std::int64_t in = i == 0 ? kFeatures : kHidden;
    out.blocks.push_back(
        {"layer." + std::to_string(i), [in] { return std::make_unique<Layer>(in); }});
  }
  out.blocks.push_back({"errors", [] { return std::make_unique<Errors>(); }});
  return out;
}

/// What a rank reports about three steps and an evaluation.
struct Reports {
  Trace trace;
  std::vector<engine::StepReport> steps;
  engine::EvalReport held_out;
};

Reports train(const Layout& layout) {
  engine::prepare_process(1);
  json::Value source = json::parse(R"({"data": {"train": "points", "drop_last": false},
      "zero_optimization": {"stage3_param_persistence_threshold": 0},
      "eval": {"batches": 3, "micro_batch": 2}, "trainer": {"seed": 5, "max_steps": 3},
      "run": {"threads_per_rank": 1}})",
                                   "points.json");
  source["train_micro_batch_size_per_gpu"] = json::Value::integer(layout.micro_batch);
  source["gradient_accumulation_steps"] = json::Value::integer(layout.accumulation);
  source["zero_optimization"]["stage"] = json::Value::integer(layout.stage);
  if (!layout.pipeline.empty())
    source["parallel"]["pipeline"] = json::parse(layout.pipeline, "pipeline");
  const planner::Plan made = planner::make_plan(source, layout.ranks, "points.json", model());
  const auto data = std::make_shared<data::Datasets>();
  data->train = std::make_unique<Points>(19);  // the third batch has 3 of 8 samples
  data->validation = std::make_unique<Points>(5);
  const planner::PlanWithData plan = planner::with_data(made, *data);
  const files::TempDir folder;
  Reports out;
  comm::run_threads(plan.mesh(), [&](comm::World& world) {
    at::set_num_threads(1);
    engine::Engine engine(plan, world, data);
    engine.initialize_weights();
    Reports mine;
    while (engine.step() < plan.course().max_steps) {
      mine.steps.push_back(engine.train_step());
      mine.trace.losses.push_back(mine.steps.back().loss);
      mine.trace.grad_norms.push_back(mine.steps.back().grad_norm);
      mine.trace.metrics.push_back(bits_of(mine.steps.back().metrics));
    }
    mine.held_out = engine.evaluate();
    mine.trace.eval_losses.push_back(mine.held_out.loss);
    mine.trace.metrics.push_back(bits_of(mine.held_out.metrics));
    const std::filesystem::path saved = engine.save(folder.path());
    if (world.is_leader()) {
      mine.trace.digest = checkpoint::Checkpoint(saved).digest();
      out = std::move(mine);
    }
    world.transport().barrier(world.everyone(), TESSERA_HERE("end of a test run"))->wait();
  });
  return out;
}

TEST(FloatInputs, TrainToTheSameBitsAndMetricsInEveryLayout) {
  const Reports reference = train({.ranks = 1, .accumulation = 4, .stage = 0});

  for (const Layout& layout :
       std::vector<Layout>{{.ranks = 2, .accumulation = 2, .stage = 1},
                           {.ranks = 4, .accumulation = 1, .stage = 3},
                           {.ranks = 2, .accumulation = 4, .stage = 0, .pipeline = "2"},
                           {.ranks = 4, .accumulation = 2, .stage = 2, .pipeline = "2"}}) {
    SCOPED_TRACE(layout.ranks);
    expect_same_bits(reference.trace, train(layout).trace);
  }
}

TEST(FloatInputs, ReportEveryTermWithItsOwnDenominator) {
  const Reports reports = train({.ranks = 2, .accumulation = 2, .stage = 1});

  for (std::size_t s = 0; s < reports.steps.size(); ++s) {
    const engine::StepReport& report = reports.steps[s];
    const double samples = s < 2 ? 8 : 3;
    ASSERT_EQ(report.metrics.size(), 3U);
    EXPECT_EQ(report.metrics[0].name, "loss");  // the objective's come first
    EXPECT_EQ(report.metrics[1].name, "distance");
    EXPECT_EQ(report.metrics[2].name, "size");
    EXPECT_EQ(report.metrics[0].denominator, samples * kTargets);
    EXPECT_EQ(report.metrics[2].denominator, samples);
    // The same sums, divided and added in another order.
    EXPECT_NEAR(report.loss,
                report.metrics[0].mean + kOfSize * report.metrics[2].mean,
                1e-12 * report.loss);
    EXPECT_EQ(report.batch_tokens, samples);
  }
}

TEST(FloatInputs, AreEvaluatedInEveryTerm) {
  const engine::EvalReport report = train({.ranks = 2, .accumulation = 2, .stage = 1}).held_out;

  ASSERT_EQ(report.metrics.size(), 3U);
  EXPECT_EQ(report.loss, report.metrics[0].mean);
  EXPECT_EQ(report.tokens, 5 * kTargets);
  EXPECT_EQ(report.metrics[2].denominator, 5);
  EXPECT_GT(report.metrics[1].mean, 0.0);
  // Three layers of tanh are added up: no more than one for each of their features.
  EXPECT_GT(report.metrics[2].mean, 0.0);
  EXPECT_LT(report.metrics[2].mean, kLayers * kHidden);
}

}  // namespace
}  // namespace tessera::test
