// SPDX-License-Identifier: Apache-2.0
// AlexNet on synthetic images, over the stages of a pipeline. The network is a plain list of blocks
// that knows nothing of ranks: `-p 2` splits it in two. With the same number of threads per rank,
// the losses are bitwise equal for every value of -p.
//
//   alexnet_pipeline [-p STAGES] [--ranks RANKS] [--threads OF_A_RANK] [--steps 200]
//                    [--batch 256] [--side 64] [--deepspeed_config FILE]
//
// `--steps=200` means `--steps 200`, and likewise for all options. FILE is a configuration in place
// of the built-in one; the other options override its keys.
//
// Images are SIDE x SIDE (224 as in the paper, small ones for a quick try). Ranks beyond the number
// of stages are data-parallel. Source: Krizhevsky 2014, "One weird trick for parallelizing
// convolutional neural networks", in the sizes of torchvision; batch and optimizer are those of
// DeepSpeed's pipeline tutorial.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "tessera/base/files.h"
#include "tessera/base/philox.h"
#include "tessera/config/key_dialect.h"
#include "tessera/config/overrides.h"
#include "tessera/engine/engine.h"
#include "tessera/engine/launch.h"
#include "tessera/engine/trainer.h"
#include "tessera/nn/functional.h"
#include "tessera/parallel/layout.h"
#include "tessera/parallel/rank_product.h"
#include "tessera/planner/make_plan.h"
#include "tessera/planner/model_plan.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/recipe.h"
#include "tessera/planner/with_data.h"
#include "tessera/report/stage_lines.h"

// Legend: B batch, H height, W width, C channels, K pixels of a window's side, F features.
namespace {

using namespace tessera;  // NOLINT: an example reads better so
using enum LogicalAxis;

constexpr std::int64_t kColours = 3, kClasses = 10, kBytes = 256;
constexpr std::int64_t kLeastSide = 63;  // smaller ones have no pixel left for the last pooling
constexpr double kDropout = 0.5;

/// Sums of many products keep the size of one (source: He et al. 2015).
Init he_normal(std::int64_t inputs) {
  return Init::normal(std::sqrt(2.0 / static_cast<double>(inputs)));
}

/// All windows of `side` x `side` pixels, `step` apart: [B, H, W, C] -> [B, H', W', C, K, K], a
/// view.
at::Tensor windows(const at::Tensor& x_BHWC, std::int64_t side, std::int64_t step) {
  return x_BHWC.unfold(1, side, step).unfold(2, side, step);
}

struct ConvolutionSizes {
  std::int64_t in = 0, out = 0, side = 3, step = 1, padding = 1;
  bool pooled = false;  ///< the largest of 3 x 3 pixels, 2 apart
  [[nodiscard]] std::int64_t pixels(std::int64_t before) const {
    const std::int64_t after = (before + 2 * padding - side) / step + 1;
    return pooled ? (after - 3) / 2 + 1 : after;
  }
};

/// relu(x * weight + bias) over the image, as one matrix product of all windows.
class Convolution final : public nn::Block {
 public:
  explicit Convolution(ConvolutionSizes sizes) : sizes_(sizes) {}
  void declare(nn::Params& params) override {
    const std::int64_t inputs = sizes_.in * sizes_.side * sizes_.side;
    weight_ = params.add("weight", {sizes_.out, inputs}, {None, None}, he_normal(inputs));
    bias_ = params.add("bias", {sizes_.out}, {None}, Init::zeros());
  }
  nn::Outcome forward(nn::Flow in, const nn::Batch& batch, nn::StepContext& context) override {
    // The first layer reads the images, in the type of the weights.
    const at::Tensor x_BHWC = in.diff.empty()
                                  ? batch.tensor("pixels").to(weight_->tensor().scalar_type())
                                  : in.diff.at(0);
    const std::int64_t p = sizes_.padding;
    const at::Tensor padded = at::constant_pad_nd(x_BHWC, {0, 0, p, p, p, p});
    const at::Tensor seen = windows(padded, sizes_.side, sizes_.step);
    const at::Tensor rows = seen.reshape({seen.size(0), seen.size(1), seen.size(2), -1});
    at::Tensor y_BHWC = at::clamp_min(nn::linear(rows, *weight_, bias_, context), 0);
    if (sizes_.pooled) y_BHWC = at::amax(windows(y_BHWC, 3, 2), {-2, -1});
    return {.flow = {.diff = {y_BHWC}}};
  }

 private:
  ConvolutionSizes sizes_;
  Param* weight_ = nullptr;
  Param* bias_ = nullptr;
};

/// relu(dropout(x) * weight + bias) of all features of an image.
class Dense final : public nn::Block {
 public:
  Dense(std::int64_t in, std::int64_t out) : in_(in), out_(out) {}
  void declare(nn::Params& params) override {
    weight_ = params.add("weight", {out_, in_}, {None, None}, he_normal(in_));
    bias_ = params.add("bias", {out_}, {None}, Init::zeros());
  }
  nn::Outcome forward(nn::Flow in, const nn::Batch& /*batch*/, nn::StepContext& context) override {
    const at::Tensor& x = in.diff.at(0);
    const at::Tensor x_BF =
        nn::dropout(x.reshape({x.size(0), in_}), context.dropout("dropout", kDropout));
    return {.flow = {.diff = {at::clamp_min(nn::linear(x_BF, *weight_, bias_, context), 0)}}};
  }

 private:
  std::int64_t in_, out_;
  Param* weight_ = nullptr;
  Param* bias_ = nullptr;
};

/// Cross-entropy over the classes.
class Classes final : public nn::Objective {
 public:
  explicit Classes(std::int64_t in) : in_(in) {}
  void declare(nn::Params& params) override {
    weight_ = params.add("weight", {kClasses, in_}, {None, None}, he_normal(in_));
  }
  nn::Outcome forward(nn::Flow in, const nn::Batch& batch, nn::StepContext& context) override {
    const at::Tensor x_B1F = in.diff.at(0).unsqueeze(1);
    const at::Tensor labels_B1 = batch.tensor("label").unsqueeze(1);
    const nn::VocabLoss loss =
        nn::vocab_loss(x_B1F, *weight_, labels_B1, /*label_smoothing=*/0.0, context);
    return {.terms = {{.name = "loss", .sum = loss.sum}}};
  }
  [[nodiscard]] std::vector<double> denominators(const nn::Batch& batch) const override {
    return {static_cast<double>(batch.size())};
  }

 private:
  std::int64_t in_;
  Param* weight_ = nullptr;
};

/// The whole network. Nothing here says how it is distributed.
nn::Model alexnet(std::int64_t side) {
  const std::vector<ConvolutionSizes> convolutions = {
      {.in = kColours, .out = 64, .side = 11, .step = 4, .padding = 2, .pooled = true},
      {.in = 64, .out = 192, .side = 5, .padding = 2, .pooled = true},
      {.in = 192, .out = 384},
      {.in = 384, .out = 256},
      {.in = 256, .out = 256, .pooled = true}};
  nn::Model model;
  std::int64_t pixels = side;
  for (const ConvolutionSizes& sizes : convolutions) {
    model.blocks.push_back({"features." + std::to_string(model.blocks.size()),
                            [sizes] { return std::make_unique<Convolution>(sizes); }});
    pixels = sizes.pixels(pixels);
  }
  const std::int64_t features = 256 * pixels * pixels;
  const std::int64_t width = 4096 * side / 224;  // width of the paper for its images
  model.blocks.push_back(
      {"classifier.0", [=] { return std::make_unique<Dense>(features, width); }});
  model.blocks.push_back({"classifier.1", [=] { return std::make_unique<Dense>(width, width); }});
  model.blocks.push_back({"classifier.2", [=] { return std::make_unique<Classes>(width); }});
  return model;
}

/// Images that are a function of their number: stripes whose distance is the class, in a colour
/// that each image has for itself, plus noise. Pixel values lie between -1 and 1.
class Pictures final : public data::Dataset {
 public:
  Pictures(std::int64_t size, std::int64_t side) : size_(size), side_(side) {}
  [[nodiscard]] std::string name() const override { return "synthetic pictures"; }
  [[nodiscard]] std::int64_t size() const override { return size_; }
  [[nodiscard]] std::vector<data::TensorSpec> tensors() const override {
    return {{.name = "pixels", .dtype = DType::F32, .shape = {side_, side_, kColours}},
            {.name = "label", .dtype = DType::I64}};
  }
  void read(std::int64_t index, data::SampleWriter& out) const override {
    const Philox random{static_cast<std::uint64_t>(index)};
    const std::int64_t label = index % kClasses;
    std::int64_t i = 0;
    for (float& pixel : out.tensor<float>("pixels")) {
      const std::int64_t colour = i % kColours, x = i / kColours % side_;
      const std::int64_t stripe = x / (label + 2) % 2 * (kBytes / 2);
      const auto noise = static_cast<std::int64_t>(random(static_cast<std::uint64_t>(i))[0] % 64);
      const std::int64_t byte = (stripe + noise + (colour == label % kColours ? 48 : 0)) % kBytes;
      pixel = static_cast<float>(byte) / 127.5F - 1.0F;
      ++i;
    }
    out.set("label", label);
  }

 private:
  std::int64_t size_, side_;
};

/// Prints every tenth loss, as steps_per_print of the tutorial.
class Print final : public engine::Hook {
 public:
  Print() : Hook(kReport) {}
  [[nodiscard]] std::string_view name() const override { return "print"; }
  void after_train_iter(engine::Trainer& trainer, const engine::StepReport& report) override {
    if (!trainer.engine().world().is_leader() || report.step % 10 != 0) return;
    std::printf("step %ld loss %.4f\n", static_cast<long>(report.step), report.loss);
  }
};

constexpr const char* kProgram = "alexnet_pipeline";

struct Options {
  std::string config;                        ///< a file; empty: built in
  std::map<std::string, std::int64_t> keys;  ///< keys that the configuration gives
  std::int64_t ranks = 0, side = 64;
};

Options read_options(int argc, char** argv) {
  static const std::map<std::string, std::string> keys = {{"-p", "parallel.pipeline.size"},
                                                          {"--threads", "run.threads_per_rank"},
                                                          {"--steps", "trainer.max_steps"},
                                                          {"--batch", "train_batch_size"}};
  Options out;
  const std::map<std::string, std::int64_t*> numbers = {{"--ranks", &out.ranks},
                                                        {"--side", &out.side}};
  for (int i = 1; i < argc; ++i) {
    const std::string typed = argv[i];
    const std::size_t equals = typed.find('=');
    const std::string name = typed.substr(0, equals);
    const auto key = keys.find(name);
    const auto number = numbers.find(name);
    const bool config = name == "--deepspeed_config";
    const bool known = config || key != keys.end() || number != numbers.end();
    TESSERA_REQUIRE(known && (equals != std::string::npos || i + 1 < argc),
                    Config,
                    "unknown or unfinished option " + typed,
                    "see the first lines of examples/alexnet_pipeline.cpp");
    const std::string value = equals == std::string::npos ? argv[++i] : typed.substr(equals + 1);
    if (config) {
      out.config = value;
    } else if (key != keys.end()) {
      out.keys[key->second] = std::atoll(value.c_str());
    } else {
      *number->second = std::atoll(value.c_str());
    }
  }
  TESSERA_REQUIRE(out.side >= kLeastSide,
                  Config,
                  "pictures of --side " + std::to_string(out.side) + " are too small",
                  "use --side " + std::to_string(kLeastSide) + " or more");
  return out;
}

/// The file's or the one of the tutorial.
json::Value read_config(const Options& options) {
  if (!options.config.empty())
    return config::key_dialect().spell_out(
        json::parse(files::read(options.config), options.config));
  return json::parse(R"({"train_batch_size": 256, "train_micro_batch_size_per_gpu": 8,
    "optimizer": {"type": "Adam", "params": {"lr": 1e-3, "betas": [0.9, 0.999], "eps": 1e-8}},
    "parallel": {"pipeline": {"partition": "parameters"}}})",
                     kProgram);
}

planner::Plan make_plan(const Options& options) {
  json::Value c = read_config(options);
  const auto set = [&](const std::string& key, std::int64_t number) {
    config::set_key(c, key, json::Value::integer(number), kProgram);
  };
  config::set_key(c, "data.train", json::Value::string("synthetic pictures"), kProgram);
  if (c.find("trainer") == nullptr) set("trainer.max_steps", 200);
  for (const auto& [key, number] : options.keys)
    set(key, number);
  const std::int64_t ranks = options.ranks > 0 ? options.ranks : parallel::ranks_per_model(c);
  return planner::make_plan(c, static_cast<int>(ranks), kProgram, alexnet(options.side));
}

int train(const Options& options) {
  const planner::Plan made = make_plan(options);
  const auto pictures = std::make_shared<data::Datasets>();
  pictures->train = std::make_unique<Pictures>(made.recipe().global_batch * 10, options.side);
  const planner::PlanWithData plan = planner::with_data(made, *pictures);

  const auto report = [](const std::vector<std::string>& lines, int /*exit_code*/) {
    for (const std::string& line : lines)
      std::fprintf(stderr, "%s\n", line.c_str());
  };
  return engine::run_ranks(plan, report, [&](comm::World& world) {
    const auto engine = engine::initialize(plan, world, pictures);
    for (const std::string& line :
         report::build_lines(plan.layout(), plan.model().resolved.model, world.rank()))
      std::printf("%s\n", line.c_str());
    std::fflush(stdout);
    engine::Trainer trainer(*engine);
    trainer.attach(std::make_unique<Print>());
    return trainer.fit();
  });
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return train(read_options(argc, argv));
  } catch (const Error& error) {
    std::fprintf(stderr, "error: %s\n", error.text().c_str());
    return exit_code(error.kind());
  }
}
