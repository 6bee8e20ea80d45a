// SPDX-License-Identifier: Apache-2.0
// timeout: 300
// Llama against the recorded answers of transformers in float64, on one rank and on ranks that hold
// the model between them.
#include "tessera/models/llama.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "golden/golden.h"
#include "support/model_runner.h"
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include "tessera/base/error.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/comm/world.h"
#include "tessera/interop/weights.h"
#include "tessera/tensor/dtype.h"

namespace tessera::models {
namespace {

namespace fs = std::filesystem;
using test::make_batch;
using test::ModelRunner;
using Tensors = std::map<std::string, at::Tensor>;

// How much a float32 program may differ, absolute: see tests/golden/README.md.
constexpr double kLogits = 5e-5, kGradients = 5e-5, kLoss = 1e-5, kAfterAdamW = 5e-5;

Tensors read_tensors(const fs::path& path) {
  const checkpoint::SafetensorsFile file(path);
  Tensors out;
  for (const auto& entry : file.entries()) {
    void* bytes = const_cast<std::byte*>(file.bytes(entry).data());
    out[entry.name] =
        at::from_blob(bytes, entry.shape, at::TensorOptions(to_torch(entry.dtype))).clone();
  }
  return out;
}

/// The rotary settings of a config.json: "rope_scaling" until transformers 4, "rope_parameters"
/// from 5 on; nullptr where there are none.
const json::Value* rotary_of(const json::Value& config) {
  const json::Value* rope = config.find("rope_parameters");
  if (rope == nullptr) rope = config.find("rope_scaling");
  return rope == nullptr || rope->is_null() ? nullptr : rope;
}

std::string rotary_kind(const json::Value& config) {
  const json::Value* const rope = rotary_of(config);
  if (rope == nullptr) return "default";
  const json::Value* const kind = rope->find("rope_type");
  return (kind == nullptr ? golden::at(*rope, "type") : *kind).as_string();
}

void read_rotary(const json::Value& config, LlamaShape& shape) {
  if (const json::Value* theta = config.find("rope_theta"))
    shape.rotation.theta = theta->as_double();
  const json::Value* const rope = rotary_of(config);
  if (rope == nullptr) return;
  const auto number = [&](const char* key, double fallback) {
    const json::Value* value = rope->find(key);
    return value == nullptr ? fallback : value->as_double();
  };
  shape.rotation.theta = number("rope_theta", shape.rotation.theta);
  ops::RotaryScaling& scaling = shape.rotation.scaling;
  scaling.kind = ops::rotary_scaling_from_name(rotary_kind(config));
  scaling.factor = number("factor", 1.0);
  scaling.low_freq_factor = number("low_freq_factor", 1.0);
  scaling.high_freq_factor = number("high_freq_factor", 4.0);
  scaling.original_positions =
      static_cast<std::int64_t>(number("original_max_position_embeddings", 8192));
}

LlamaShape shape_of(const json::Value& config) {
  const auto integer = [&](const char* key) { return *golden::at(config, key).as_integer(); };
  LlamaShape shape;
  shape.num_layers = integer("num_hidden_layers");
  shape.hidden_size = integer("hidden_size");
  shape.num_heads = integer("num_attention_heads");
  shape.num_kv_heads = integer("num_key_value_heads");
  shape.ffn_hidden_size = integer("intermediate_size");
  shape.vocab_size = integer("vocab_size");
  shape.max_positions = integer("max_position_embeddings");
  shape.rms_norm_eps = golden::at(config, "rms_norm_eps").as_double();
  shape.tie_embeddings = golden::at(config, "tie_word_embeddings").as_bool();
  if (config.find("head_dim") != nullptr) shape.head_dim = integer("head_dim");
  read_rotary(config, shape);
  return shape;
}

/// A tensor of Hugging Face's as a part of one of ours: a view whose elements have the same order.
struct Piece {
  std::string name;
  at::Tensor view;
};
std::vector<Piece> pieces(const ParamInfo& info, const at::Tensor& whole) {
  const std::string prefix = info.name == "lm_head.weight" ? "" : "model.";
  const auto renamed = [&](const char* ours, const char* theirs) {
    std::string name = prefix + info.name;
    return name.replace(name.find(ours), std::string_view(ours).size(), theirs);
  };
  if (info.name.find("gate_up_proj") != std::string::npos) {
    return {{renamed("gate_up", "gate"), whole.select(0, 0)},
            {renamed("gate_up", "up"), whole.select(0, 1)}};
  }
  if (info.name.find("qkv_proj") == std::string::npos) return {{prefix + info.name, whole}};
  const bool shared = info.axes.front() == LogicalAxis::KvHeads;
  const std::int64_t dim = shared ? 1 : 0, queries = whole.size(dim) - 2;
  return {{renamed("qkv", "q"), shared ? whole.narrow(dim, 0, queries) : whole.select(dim, 0)},
          {renamed("qkv", "k"), whole.select(dim, queries)},
          {renamed("qkv", "v"), whole.select(dim, queries + 1)}};
}

/// Puts Hugging Face's tensors together. Undefined where one is absent.
at::Tensor from_pieces(const ParamInfo& info, const Tensors& theirs, const std::string& prefix) {
  at::Tensor whole = at::empty(info.shape);
  for (const Piece& piece : pieces(info, whole)) {
    const auto tensor = theirs.find(prefix + piece.name);
    if (tensor == theirs.end()) return {};
    piece.view.copy_(tensor->second.reshape(piece.view.sizes()));
  }
  return whole;
}

struct Case {
  fs::path folder;
  LlamaShape shape;
  Tensors weights, expected;

  explicit Case(const fs::path& from)
      : folder(from), shape(shape_of(golden::read_json(from / "config.json"))) {
    for (const fs::path& file : interop::weight_files(folder))
      weights.merge(read_tensors(file));
    expected = read_tensors(folder / "expected.safetensors");
  }
  [[nodiscard]] ModelRunner runner(comm::World* world = nullptr,
                                   const parallel::StageLayout& stages = {},
                                   nn::TensorMode mode = nn::TensorMode::OneD) const {
    ModelRunner out(llama(shape), DType::F32, world, stages, mode);
    out.fill([&](const ParamInfo& info, const at::Tensor& to) {
      to.copy_(from_pieces(info, weights, "").view({-1}));
    });
    return out;
  }
  [[nodiscard]] nn::Batch batch() const {
    // Theirs are not shifted: label t belongs to token t.
    const at::Tensor& labels = expected.at("input.labels");
    at::Tensor shifted = at::full_like(labels, -100);
    shifted.narrow(1, 0, labels.size(1) - 1).copy_(labels.narrow(1, 1, labels.size(1) - 1));
    nn::Batch out = make_batch(expected.at("input.input_ids"), shifted);
    out.set("attention_mask", expected.at("input.attention_mask"));
    return out;
  }
  [[nodiscard]] std::size_t count(const std::string& prefix) const {
    return static_cast<std::size_t>(std::ranges::count_if(
        expected, [&](const auto& named) { return named.first.starts_with(prefix); }));
  }
};

double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

/// Cases of other rotary scalings are skipped.
bool is_supported(const fs::path& folder) {
  const json::Value config = golden::read_json(folder / "config.json");
  const json::Value* const type = config.find("model_type");
  if (type == nullptr || type->as_string() != "llama") return false;
  const std::string scaling = rotary_kind(config);
  const std::vector<std::string> known = ops::rotary_scaling_names();
  return std::ranges::find(known, scaling) != known.end();
}

void for_each_case(const std::function<void(Case&)>& check) {
  int count = 0;
  for (const fs::path& folder : golden::cases("models")) {
    if (!is_supported(folder)) continue;
    SCOPED_TRACE(folder.filename().string());
    Case one(folder);
    check(one);
    ++count;
  }
  EXPECT_GT(count, 0) << "no llama in " << golden::folder() / "models";
}

void expect_logits_and_loss(const Case& one, ModelRunner& runner) {
  const nn::Batch batch = one.batch();
  nn::StepContext context(nn::Mode::Eval, 1);
  context.want_logits = true;

  const nn::Outcome out = runner.infer(batch, context);

  if (out.terms.empty()) return;  // a stage without the objective
  const at::Tensor padding = one.expected.at("input.attention_mask").eq(0).unsqueeze(-1);
  EXPECT_LT(largest_difference(out.outputs.at("logits").masked_fill(padding, 0.0),
                               one.expected.at("logits").masked_fill(padding, 0.0)),
            kLogits);
  const double labels = runner.instance().objective()->denominators(batch).at(0);
  EXPECT_NEAR(
      out.terms.at(0).sum.item<double>() / labels, one.expected.at("loss").item<double>(), kLoss);
}

/// Compares the gradients that the rank holds. Returns how many of Hugging Face's tensors were
/// compared.
std::size_t expect_gradients(const Case& one, ModelRunner& runner) {
  EXPECT_NEAR(runner.train(one.batch()), one.expected.at("loss").item<double>(), kLoss);
  std::size_t compared = 0;
  for (const auto& [name, info] : runner.infos) {
    const at::Tensor whole = from_pieces(*info, one.expected, "grad.");
    if (!whole.defined()) continue;
    EXPECT_LT(largest_difference(runner.grads.at(name), ModelRunner::held(*info, whole)),
              kGradients)
        << name;
    compared += pieces(*info, whole).size();
  }
  return compared;
}

TEST(GoldenLlama, GivesTheLogitsAndTheLoss) {
  for_each_case([](Case& one) {
    ModelRunner runner = one.runner();
    expect_logits_and_loss(one, runner);
  });
}

TEST(GoldenLlama, GivesEveryGradient) {
  for_each_case([](Case& one) {
    ModelRunner runner = one.runner();
    EXPECT_EQ(expect_gradients(one, runner), one.count("grad."));
  });
}

TEST(GoldenLlama, TakesThreeAdamWSteps) {
  for_each_case([](Case& one) {
    const json::Value record = golden::read_json(one.folder / "case.json");
    const json::Value* adamw = record.find("adamw");
    if (adamw == nullptr) return;
    const auto betas = golden::numbers(golden::at(*adamw, "betas")),
               losses = golden::numbers(golden::at(*adamw, "losses"));
    ModelRunner runner = one.runner();
    const nn::Batch batch = one.batch();
    for (std::size_t step = 1; step < losses.size(); ++step) {
      EXPECT_NEAR(runner.train(batch), losses[step - 1], kLoss);
      runner.update({.lr = golden::at(*adamw, "lr").as_double(),
                     .beta1 = betas.at(0),
                     .beta2 = betas.at(1),
                     .eps = golden::at(*adamw, "eps").as_double(),
                     .weight_decay = golden::at(*adamw, "weight_decay").as_double(),
                     .step = static_cast<std::int64_t>(step)});
    }
    EXPECT_NEAR(runner.train(batch), losses.back(), kLoss);
    std::size_t compared = 0;
    for (const auto& [name, info] : runner.infos) {
      for (const Piece& piece : pieces(*info, runner.weights.at(name))) {
        const auto after = one.expected.find("after." + piece.name);
        if (after == one.expected.end()) continue;
        EXPECT_LT(largest_difference(piece.view, after->second.reshape(piece.view.sizes())),
                  kAfterAdamW)
            << piece.name;
        ++compared;
      }
    }
    EXPECT_EQ(compared, one.count("after."));
  });
}

std::vector<std::int64_t> ids_of(const json::Value& list) {
  std::vector<std::int64_t> out;
  for (const json::Value& id : list.items())
    out.push_back(*id.as_integer());
  return out;
}

TEST(GoldenLlama, ContinuesPromptsGreedilyWithAndWithoutACache) {
  for_each_case([](Case& one) {
    if (!fs::exists(one.folder / "generation.json")) return;
    const json::Value record = golden::read_json(one.folder / "generation.json");
    const std::int64_t count = *golden::at(record, "new_tokens").as_integer();
    ModelRunner runner = one.runner();
    for (const json::Value& text : golden::at(record, "cases").items()) {
      const auto prompt = ids_of(golden::at(text, "prompt")),
                 greedy = ids_of(golden::at(text, "greedy"));
      EXPECT_EQ(runner.greedy(prompt, count, /*cached=*/true, one.shape.vocab_size), greedy);
      EXPECT_EQ(runner.greedy(prompt, count, /*cached=*/false, one.shape.vocab_size), greedy);
    }
  });
}

struct Ranks {
  std::string name;
  mesh::Mesh::Sizes mesh;
  nn::TensorMode mode = nn::TensorMode::OneD;
  int stages = 1;
};

TEST(GoldenLlama, GivesTheSameOnRanksThatHoldTheModelBetweenThem) {
  const std::vector<Ranks> layouts = {
      {"1d", {.tp_col = 2}},
      {"2d", {.tp_row = 2, .tp_col = 2}, nn::TensorMode::TwoD},
      {"2.5d", {.tp_depth = 2, .tp_row = 2, .tp_col = 2}, nn::TensorMode::TwoD},
      {"3d", {.tp_depth = 2, .tp_row = 2, .tp_col = 2}, nn::TensorMode::ThreeD},
      {"stages", {.pp = 2}, nn::TensorMode::OneD, 2}};
  for_each_case([&](Case& one) {
    const auto blocks = static_cast<int>(one.shape.num_layers) + 2;
    for (const Ranks& ranks : layouts) {
      comm::run_threads(mesh::Mesh(ranks.mesh), [&](comm::World& world) {
        SCOPED_TRACE(ranks.name + ", rank " + std::to_string(world.rank()));
        parallel::StageLayout stages{.stages = ranks.stages};
        if (ranks.stages == 2) stages.bounds = {0, blocks / 2, blocks};
        ModelRunner runner = one.runner(&world, stages, ranks.mode);

        expect_logits_and_loss(one, runner);
        expect_gradients(one, runner);
      });
    }
  });
}

LlamaShape tiny() {
  LlamaShape shape;
  shape.num_layers = 2;
  shape.hidden_size = 32;
  shape.num_heads = 4;
  shape.num_kv_heads = 2;
  shape.ffn_hidden_size = 48;
  shape.vocab_size = 61;
  shape.max_positions = 24;
  shape.init_std = 0.3;
  return shape;
}

at::Tensor random_ids(std::int64_t batch, std::int64_t tokens) {
  return at::randint(
      61, {batch, tokens}, at::make_generator<at::CPUGeneratorImpl>(std::uint64_t{3}), at::kLong);
}

TEST(Llama, HasTheParametersItPromises) {
  for (const bool tied : {true, false}) {
    for (const bool biases : {true, false}) {
      LlamaShape shape = tiny();
      shape.tie_embeddings = tied;
      shape.attention_bias = shape.mlp_bias = biases;
      shape.head_dim = tied ? 6 : 0;
      shape.num_kv_heads = biases ? 0 : 1;

      const ModelRunner runner(llama(shape));
      std::int64_t total = 0;
      for (const auto& [name, info] : runner.infos)
        total += info->numel();

      EXPECT_EQ(total, shape.num_parameters());
      EXPECT_EQ(runner.infos.contains("lm_head.weight"), !tied);
      EXPECT_EQ(runner.infos.contains("layers.1.self_attn.qkv_proj.bias"), biases);
      EXPECT_EQ(runner.infos.at("layers.0.self_attn.o_proj.weight")->shape,
                (Shape{32, tied ? 24 : 32}));
    }
  }
}

TEST(Llama, CutsHeadsAndFeaturesOverTensorParallelRanks) {
  comm::run_threads(mesh::Mesh({.tp_col = 2}), [](comm::World& world) {
    const ModelRunner runner(llama(tiny()), DType::F32, &world);

    const auto held = [&](const char* name) { return runner.infos.at(name)->local_shape(); };
    EXPECT_EQ(held("layers.0.self_attn.qkv_proj.weight"), (Shape{1, 4, 8, 32}));
    EXPECT_EQ(held("layers.0.self_attn.o_proj.weight"), (Shape{32, 16}));
    EXPECT_EQ(held("layers.0.mlp.gate_up_proj.weight"), (Shape{2, 24, 32}));
    EXPECT_EQ(held("layers.0.mlp.down_proj.weight"), (Shape{32, 24}));
    EXPECT_EQ(held("norm.weight"), (Shape{32}));
  });
}

// No recorded model has biases or a separate head size.
TEST(Llama, HasTheGradientsOfItsLossWithBiasesAndLargeHeads) {
  LlamaShape shape = tiny();
  shape.attention_bias = shape.mlp_bias = true;
  shape.head_dim = 12;
  ModelRunner runner(llama(shape));
  runner.initialize(1);
  const at::Tensor ids = random_ids(2, 12);
  const nn::Batch batch = make_batch(ids, ids.roll(1, 1));
  runner.train(batch);
  const ModelRunner::Tensors grads = runner.grads, weights = runner.weights;
  double square = 0;
  for (const auto& [name, grad] : grads)
    square += grad.to(at::kDouble).square().sum().item<double>();
  const auto loss_at = [&](double step) {
    runner.fill([&](const ParamInfo& info, const at::Tensor& out) {
      out.copy_(weights.at(info.name).view({-1}));
      out.add_(grads.at(info.name).reshape({-1}), step);
    });
    return runner.train(batch);
  };
  const double step = 5e-3 / std::sqrt(square);

  const double slope = (loss_at(step) - loss_at(-step)) / (2 * step);

  // The loss is computed in float32, whose rounding is 1e-7 of it.
  EXPECT_NEAR(slope, square, 2e-3 * square);
  for (const auto& [name, grad] : grads) {
    EXPECT_GT(grad.abs().max().item<double>(), 0.0) << name;
    EXPECT_LT(grad.abs().max().item<double>(), 100.0) << name;  // the sinks hold 123
  }
}

TEST(Llama, DecodesWithTheCacheLikeAFullForward) {
  ModelRunner runner(llama(tiny()));
  runner.initialize(1);
  const at::Tensor ids = random_ids(2, 16);
  nn::StepContext full(nn::Mode::Eval, 1), cached(nn::Mode::Prefill, 1);
  const at::Tensor expected = runner.infer(make_batch(ids), full).outputs.at("logits");

  at::Tensor logits = runner.infer(make_batch(ids.narrow(1, 0, 5)), cached).outputs.at("logits");
  cached.set_mode(nn::Mode::Decode);
  for (std::int64_t t = 5; t < 16; ++t) {
    // Matrix products of other shapes sum in another order.
    EXPECT_LT(largest_difference(logits.select(1, -1), expected.select(1, t - 1)),
              2e-6 * expected.abs().max().item<double>());
    cached.position = t;
    logits = runner.infer(make_batch(ids.narrow(1, t, 1)), cached).outputs.at("logits");
  }

  EXPECT_EQ(logits.sizes(), (std::vector<std::int64_t>{2, 1, 61}));
}

// Positions count from where a document begins, and no token sees another document.
TEST(Llama, ReadsPackedDocumentsAsEachAlone) {
  ModelRunner runner(llama(tiny()));
  runner.initialize(1);
  const at::Tensor ids = random_ids(1, 20);
  const auto logits_of = [&](const at::Tensor& input, const at::Tensor& starts) {
    nn::StepContext context(nn::Mode::Eval, 1);
    nn::Batch batch = make_batch(input);
    if (starts.defined()) batch.set("document_starts", starts);
    return runner.infer(batch, context).outputs.at("logits");
  };
  at::Tensor starts = at::zeros({1, 20}, at::kLong);
  starts.narrow(1, 5, 12).fill_(5);
  starts.narrow(1, 17, 3).fill_(17);

  const at::Tensor packed = logits_of(ids, starts);
  const at::Tensor alone = at::cat({logits_of(ids.narrow(1, 0, 5), {}),
                                    logits_of(ids.narrow(1, 5, 12), {}),
                                    logits_of(ids.narrow(1, 17, 3), {})},
                                   1);

  EXPECT_LT(largest_difference(packed, alone), 2e-5);  // matrix products of other shapes
  EXPECT_GT(largest_difference(logits_of(ids, {}), alone), 0.01);
}

TEST(Llama, RefusesMoreTokensThanPositions) {
  ModelRunner runner(llama(tiny()));
  nn::StepContext context(nn::Mode::Eval, 1);

  EXPECT_THROW(runner.infer(make_batch(random_ids(1, 25)), context), Error);
}

TEST(Llama, RunsForwardAndBackwardOnMeta) {
  const auto meta = [](const Shape& shape, at::ScalarType type) {
    return at::empty(shape, at::TensorOptions(type).device(at::kMeta));
  };
  const nn::Model model = llama(tiny());
  nn::Batch batch = make_batch(meta({2, 24}, at::kLong), meta({2, 24}, at::kLong));
  nn::StepContext context(nn::Mode::Train, 1);
  context.batch = &batch;
  nn::Flow flow;

  for (const nn::BlockSpec& spec : model.blocks) {
    const auto block = spec.make();
    nn::Params params(spec.name);
    block->declare(params);
    std::vector<at::Tensor> inputs;
    for (at::Tensor& x : flow.diff)
      inputs.push_back(x = x.detach().set_requires_grad(true));
    for (const auto& param : params.list()) {
      param->attach(meta(param->info().shape, at::kBFloat16).set_requires_grad(true));
      param->grad().open(meta(param->info().shape, at::kFloat));
      inputs.push_back(param->tensor());
    }
    context.block_name = spec.name;

    nn::Outcome out = block->forward(flow, batch, context);
    const at::Tensor root = out.terms.empty() ? out.flow.diff.at(0) : out.terms.at(0).sum;
    torch::autograd::grad({root}, inputs, {at::empty_like(root)}, std::nullopt, false, true);

    for (const auto& param : params.list())
      EXPECT_TRUE(param->grad().was_written()) << param->info().name;
    flow = out.flow;
  }
}

}  // namespace
}  // namespace tessera::models
