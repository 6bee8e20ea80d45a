// SPDX-License-Identifier: Apache-2.0
// Regression on numbers: a dataset of the program's own, whose samples are float tensors, and a
// model of plain blocks that reads them by name. No tokens and no tokenizer are involved.
//
//   regression [RANKS] [STEPS]
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "tessera/base/philox.h"
#include "tessera/engine/engine.h"
#include "tessera/engine/launch.h"
#include "tessera/engine/trainer.h"
#include "tessera/nn/functional.h"
#include "tessera/planner/make_plan.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/with_data.h"

// Legend: B batch, F features, H hidden features, O targets.
namespace {

using namespace tessera;  // NOLINT: an example reads better so

constexpr std::int64_t kFeatures = 4, kTargets = 2, kHidden = 32;

/// Points in the unit cube and two smooth functions of each. Sample i is a function of i.
class Points final : public data::Dataset {
 public:
  Points(std::int64_t size, std::uint64_t seed) : size_(size), seed_(seed) {}
  [[nodiscard]] std::string name() const override { return "points"; }
  [[nodiscard]] std::int64_t size() const override { return size_; }
  [[nodiscard]] std::vector<data::TensorSpec> tensors() const override {
    return {{.name = "features", .dtype = DType::F32, .shape = {kFeatures}},
            {.name = "targets", .dtype = DType::F32, .shape = {kTargets}}};
  }
  void read(std::int64_t index, data::SampleWriter& out) const override {
    const Philox random{seed_};
    const auto draw = random(static_cast<std::uint64_t>(index));
    const std::span<float> x = out.tensor<float>("features");
    for (std::size_t f = 0; f < x.size(); ++f)
      x[f] = static_cast<float>(draw[f]) / 4294967296.0F;
    out.set("targets",
            std::vector<float>{std::sin(3.0F * x[0]) + x[1] * x[2], x[3] - 0.5F * x[0] * x[1]});
  }

 private:
  std::int64_t size_;
  std::uint64_t seed_;
};

/// tanh(x * weight + bias), where x is the features of a sample or the output of the layer before.
class Layer final : public nn::Block {
 public:
  explicit Layer(std::int64_t in) : in_(in) {}
  void declare(nn::Params& params) override {
    const double std = 1.0 / std::sqrt(static_cast<double>(in_));
    weight_ = params.add(
        "weight", {kHidden, in_}, {LogicalAxis::None, LogicalAxis::None}, Init::normal(std));
    bias_ = params.add("bias", {kHidden}, {LogicalAxis::None}, Init::zeros());
  }
  nn::Outcome forward(nn::Flow in, const nn::Batch& batch, nn::StepContext& context) override {
    const at::Tensor x_BF = in.diff.empty()
                                ? batch.tensor("features").to(weight_->tensor().scalar_type())
                                : in.diff.at(0);
    return {.flow = {.diff = {at::tanh(nn::linear(x_BF, *weight_, bias_, context))}}};
  }

 private:
  std::int64_t in_;
  Param* weight_ = nullptr;
  Param* bias_ = nullptr;
};

/// The mean of the squared errors of all targets; that of the absolute ones is reported only.
class SquaredError final : public nn::Objective {
 public:
  void declare(nn::Params& params) override {
    weight_ = params.add(
        "weight", {kTargets, kHidden}, {LogicalAxis::None, LogicalAxis::None}, Init::normal(0.1));
    bias_ = params.add("bias", {kTargets}, {LogicalAxis::None}, Init::zeros());
  }
  nn::Outcome forward(nn::Flow in, const nn::Batch& batch, nn::StepContext& context) override {
    const at::Tensor predicted_BO = nn::linear(in.diff.at(0), *weight_, bias_, context);
    const at::Tensor error_BO = predicted_BO.to(at::kDouble) - batch.tensor("targets");
    return {.terms = {{.name = "loss", .sum = error_BO.square().sum()},
                      {.name = "distance", .sum = error_BO.detach().abs().sum(), .weight = 0.0}}};
  }
  [[nodiscard]] std::vector<double> denominators(const nn::Batch& batch) const override {
    return {static_cast<double>(batch.tensor("targets").numel())};
  }

 private:
  Param* weight_ = nullptr;
  Param* bias_ = nullptr;
};

nn::Model make_model() {
  nn::Model model;
  model.blocks.push_back({"layer.0", [] { return std::make_unique<Layer>(kFeatures); }});
  model.blocks.push_back({"layer.1", [] { return std::make_unique<Layer>(kHidden); }});
  model.blocks.push_back({"error", [] { return std::make_unique<SquaredError>(); }});
  return model;
}

/// Prints every twentieth loss and, next to it, the loss on held-out points.
class Print final : public engine::Hook {
 public:
  Print() : Hook(kReport) {}
  [[nodiscard]] std::string_view name() const override { return "print"; }
  void after_train_iter(engine::Trainer& trainer, const engine::StepReport& report) override {
    if (report.step % 20 != 0) return;
    const engine::EvalReport held_out = trainer.test();  // all ranks take part
    if (!trainer.engine().world().is_leader()) return;
    std::printf("step %ld loss %.5f | held-out loss %.5f distance %.3f\n",
                static_cast<long>(report.step),
                report.loss,
                held_out.loss,
                engine::find_metric(held_out.metrics, "distance")->mean);
  }
};

int train(int ranks, int steps) {
  const std::string text = R"({"data": {"train": "points"}, "train_batch_size": 64,
    "train_micro_batch_size_per_gpu": 16, "optimizer": {"params": {"lr": 1e-2, "weight_decay": 0}},
    "run": {"threads_per_rank": 1}, "trainer": {"max_steps": )" +
                           std::to_string(steps) + "}}";
  const planner::Plan made =
      planner::make_plan(json::parse(text, "regression"), ranks, "regression", make_model());
  const auto points = std::make_shared<data::Datasets>();
  points->train = std::make_unique<Points>(4096, /*seed=*/1);
  points->validation = std::make_unique<Points>(256, /*seed=*/2);
  const planner::PlanWithData plan = planner::with_data(made, *points);

  const auto report = [](const std::vector<std::string>& lines, int /*exit_code*/) {
    for (const std::string& line : lines)
      std::fprintf(stderr, "%s\n", line.c_str());
  };
  return engine::run_ranks(plan, report, [&](comm::World& world) {
    const auto engine = engine::initialize(plan, world, points);
    engine::Trainer trainer(*engine);
    trainer.attach(std::make_unique<Print>());
    return trainer.fit();
  });
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return train(argc > 1 ? std::atoi(argv[1]) : 2, argc > 2 ? std::atoi(argv[2]) : 200);
  } catch (const Error& error) {
    std::fprintf(stderr, "error: %s\n", error.text().c_str());
    return exit_code(error.kind());
  }
}
