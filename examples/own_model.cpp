// SPDX-License-Identifier: Apache-2.0
// A model that tessera does not know, built from plain blocks, trained with ZeRO-3 and recompute by
// one call: planner::make_plan(..., own_model()). No class is replaced or wrapped: the blocks
// declare their parameters, and the configuration says how these are distributed and which blocks
// are recomputed. With a folder it writes checkpoints, and continues from the newest one when it is
// started again.
//
//   own_model [RANKS] [STEPS] [FOLDER]
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include <ATen/ATen.h>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/engine/engine.h"
#include "tessera/engine/hooks/hooks.h"
#include "tessera/engine/launch.h"
#include "tessera/engine/trainer.h"
#include "tessera/nn/functional.h"
#include "tessera/planner/make_plan.h"
#include "tessera/planner/plan.h"

// Legend: B batch, T tokens, C channels, V vocabulary.
namespace {

using namespace tessera;  // NOLINT: an example reads better so
using enum LogicalAxis;

constexpr std::int64_t kVocab = 256, kWidth = 64;
constexpr int kLayers = 5;

class Table final : public nn::Block {
 public:
  void declare(nn::Params& params) override {
    table_ = params.add("weight", {kVocab, kWidth}, {Vocab, Embed}, Init::normal(0.02));
  }
  nn::Outcome forward(nn::Flow /*in*/, const nn::Batch& batch, nn::StepContext& context) override {
    return {.flow = {.diff = {nn::embedding(batch.tensor("input_ids"), *table_, context)}}};
  }

 private:
  Param* table_ = nullptr;
};

/// y = x + out(silu(in([x, x shifted by `gap` tokens]))): a causal convolution with two taps.
/// Source: van den Oord et al. 2016, "WaveNet".
class Convolution final : public nn::Block {
 public:
  explicit Convolution(std::int64_t gap) : gap_(gap) {}
  void declare(nn::Params& params) override {
    const Init init = Init::normal(0.05);
    in_ = params.add("in.weight", {2 * kWidth, 2 * kWidth}, {Ffn, Embed}, init);
    out_ = params.add("out.weight", {kWidth, 2 * kWidth}, {Embed, Ffn}, init);
  }
  nn::Outcome forward(nn::Flow in, const nn::Batch& /*batch*/, nn::StepContext& context) override {
    const at::Tensor x_BTC = in.diff.at(0);
    const at::Tensor before_BTC = at::constant_pad_nd(x_BTC, {0, 0, gap_, -gap_});
    const at::Tensor h =
        at::silu(nn::linear(at::cat({x_BTC, before_BTC}, 2), *in_, nullptr, context));
    return {.flow = {.diff = {x_BTC + nn::linear(h, *out_, nullptr, context)}}};
  }

 private:
  std::int64_t gap_;
  Param* in_ = nullptr;
  Param* out_ = nullptr;
};

class Loss final : public nn::Objective {
 public:
  void declare(nn::Params& params) override {
    weight_ = params.add("weight", {kVocab, kWidth}, {Vocab, Embed}, Init::normal(0.02));
  }
  /// Without labels it predicts: the result is the logits of every token.
  nn::Outcome forward(nn::Flow in, const nn::Batch& batch, nn::StepContext& context) override {
    if (!batch.has("labels"))
      return {.outputs = {{"logits", nn::linear(in.diff.at(0), *weight_, nullptr, context)}}};
    const nn::VocabLoss loss = nn::vocab_loss(
        in.diff.at(0), *weight_, batch.tensor("labels"), /*label_smoothing=*/0.0, context);
    return {.terms = {{.name = "loss", .sum = loss.sum}}};
  }
  [[nodiscard]] std::vector<double> denominators(const nn::Batch& batch) const override {
    return {static_cast<double>(batch.tensor("labels").numel())};
  }

 private:
  Param* weight_ = nullptr;
};

nn::Model own_model() {
  nn::Model model;
  model.blocks.push_back({"table", [] { return std::make_unique<Table>(); }});
  for (int layer = 0; layer < kLayers; ++layer) {
    const std::int64_t gap = std::int64_t{1} << layer;
    model.blocks.push_back({"convolution." + std::to_string(layer),
                            [gap] { return std::make_unique<Convolution>(gap); }});
  }
  model.blocks.push_back({"loss", [] { return std::make_unique<Loss>(); }});
  return model;
}

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

/// Continues from the newest checkpoint of the run folder, if there is one.
void resume(engine::Engine& engine, const std::filesystem::path& folder) {
  if (const auto newest = checkpoint::newest(folder / checkpoint::kFolderOfRun))
    engine.load(checkpoint::Checkpoint(*newest));
}

/// Prints the most likely character after `text`. Every rank takes part.
void predict(engine::Engine& engine, const std::string& text) {
  nn::Batch batch;
  batch.set("input_ids",
            at::tensor(std::vector<std::int64_t>(text.begin(), text.end())).unsqueeze(0));
  batch.sample_ids = {0};
  nn::StepContext context(nn::Mode::Eval, /*seed=*/0);
  const nn::Outcome out = engine.state().infer(batch, context);
  const auto next = out.outputs.at("logits")[0][-1].argmax().item<std::int64_t>();
  if (engine.world().is_leader())
    std::printf("after \"%s\" comes \"%c\"\n", text.c_str(), static_cast<char>(next));
}

int train(int ranks, int steps, const std::filesystem::path& folder) {
  const std::string text =
      R"({"data": {"train": "examples/data/shakespeare.txt", "sequence_length": 64},
    "train_batch_size": 16, "optimizer": {"params": {"lr": 1e-2}},
    "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
    "activation_checkpointing": {"enabled": true}, "trainer": {"max_steps": )" +
      std::to_string(steps) + "}}";
  const planner::Plan plan =
      planner::make_plan(json::parse(text, "own_model"), ranks, "own_model", own_model());

  const auto report = [](const std::vector<std::string>& lines, int /*exit_code*/) {
    for (const std::string& line : lines)
      std::fprintf(stderr, "%s\n", line.c_str());
  };
  if (!folder.empty()) std::filesystem::create_directories(folder);
  return engine::run_ranks(plan, report, [&](comm::World& world) {
    const auto engine = engine::initialize(plan, world);
    if (!folder.empty()) resume(*engine, folder);
    engine::Trainer trainer(*engine, /*console=*/nullptr, folder);
    engine::attach_defaults(trainer);
    trainer.attach(std::make_unique<Print>());
    const int code = trainer.fit();
    predict(*engine, "What is the city but the people");
    return code;
  });
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return train(argc > 1 ? std::atoi(argv[1]) : 2,
                 argc > 2 ? std::atoi(argv[2]) : 50,
                 argc > 3 ? argv[3] : "");
  } catch (const Error& error) {
    std::fprintf(stderr, "error: %s\n", error.text().c_str());
    return exit_code(error.kind());
  }
}
