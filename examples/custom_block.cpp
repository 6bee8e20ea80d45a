// SPDX-License-Identifier: Apache-2.0
// Adds a user-defined block to GPT-2. The block is written for one device with plain ATen calls.
// Gradient reduction, sharded optimizer state, bf16, checkpoints and any number of ranks work
// without additional code.
//
//   custom_block [RANKS] [STEPS]
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include <ATen/ATen.h>

#include "tessera/engine/engine.h"
#include "tessera/engine/launch.h"
#include "tessera/engine/trainer.h"
#include "tessera/models/gpt2.h"
#include "tessera/planner/make_plan.h"
#include "tessera/planner/model_plan.h"
#include "tessera/planner/plan.h"

namespace {

using namespace tessera;  // NOLINT: an example reads better so
using enum LogicalAxis;

/// y = x + sigmoid(gate) * tanh(x W): a gated residual layer that initially adds almost nothing.
class GatedResidual final : public nn::Block {
 public:
  explicit GatedResidual(std::int64_t width) : width_(width) {}
  void declare(nn::Params& params) override {
    weight_ = params.add("weight", {width_, width_}, {Embed, Embed}, Init::normal(0.02));
    gate_ = params.add("gate", {width_}, {Embed}, Init::zeros());
  }
  nn::Outcome forward(nn::Flow in,
                      const nn::Batch& /*batch*/,
                      nn::StepContext& /*context*/) override {
    const at::Tensor x_BTC = in.diff.at(0);
    const at::Tensor y_BTC =
        x_BTC + at::sigmoid(gate_->tensor()) * at::tanh(at::matmul(x_BTC, weight_->tensor()));
    nn::Outcome out;
    out.flow = std::move(in);
    out.flow.diff[0] = y_BTC;
    return out;
  }
  /// Works token by token, so ranks may share the tokens.
  [[nodiscard]] bool works_by_token() const override { return true; }

 private:
  std::int64_t width_;
  Param* weight_ = nullptr;
  Param* gate_ = nullptr;
};

/// Prints every tenth loss.
class Print final : public engine::Hook {
 public:
  Print() : Hook(kReport) {}
  [[nodiscard]] std::string_view name() const override { return "print"; }
  void after_train_iter(engine::Trainer& trainer, const engine::StepReport& report) override {
    if (!trainer.engine().world().is_leader() || report.step % 10 != 0) return;
    std::printf("step %ld loss %.4f\n", static_cast<long>(report.step), report.loss);
  }
};

int train(int ranks, int steps) {
  const std::string text = R"({"model": {"num_layers": 2, "hidden_size": 64, "num_heads": 4},
    "data": {"train": "examples/data/shakespeare.txt", "sequence_length": 32},
    "train_batch_size": 8, "optimizer": {"params": {"lr": 3e-3}}, "trainer": {"max_steps": )" +
                           std::to_string(steps) + "}}";
  const planner::Plan without =
      planner::make_plan(json::parse(text, "custom_block"), ranks, "custom_block");
  // The model is a list of blocks: insert the new block before the head.
  planner::ModelPlan model = without.model();
  auto& blocks = model.resolved.model.blocks;
  const std::int64_t width = model.resolved.hidden_size;
  blocks.insert(blocks.end() - 1,
                {"gated", [width] { return std::make_unique<GatedResidual>(width); }});
  const planner::Plan plan = planner::with(without, std::move(model));

  const auto report = [](const std::vector<std::string>& lines, int /*exit_code*/) {
    for (const std::string& line : lines)
      std::fprintf(stderr, "%s\n", line.c_str());
  };
  return engine::run_ranks(plan, report, [&](comm::World& world) {
    const auto engine = engine::initialize(plan, world);
    engine::Trainer trainer(*engine);
    trainer.attach(std::make_unique<Print>());
    return trainer.fit();
  });
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return train(argc > 1 ? std::atoi(argv[1]) : 2, argc > 2 ? std::atoi(argv[2]) : 50);
  } catch (const Error& error) {
    std::fprintf(stderr, "error: %s\n", error.text().c_str());
    return exit_code(error.kind());
  }
}
