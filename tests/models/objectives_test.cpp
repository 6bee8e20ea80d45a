// SPDX-License-Identifier: Apache-2.0
// timeout: 300
// Objectives over trunks: the head's arithmetic against ATen's autograd in float64, and the same
// numbers on ranks that hold the model between them.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "support/model_runner.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include "tessera/base/error.h"
#include "tessera/comm/world.h"
#include "tessera/models/gpt2.h"
#include "tessera/models/objective.h"
#include "tessera/nn/functional.h"

namespace tessera::models {
namespace {

using test::ModelRunner;
using ::testing::HasSubstr;

// Legend: B batch, T tokens, C embed, L labels.
constexpr std::int64_t kB = 5, kT = 7, kC = 16, kVocab = 23, kLabels = 3;
// Sums of some tens of float32 products.
constexpr double kTolerance = 2e-6;

json::Value options(const std::string& text) {
  return json::parse(text, "options.json");
}
json::Value three_labels() {
  return options(R"({"num_labels": 3})");
}

/// A trunk of one block, which looks tokens up.
class Table final : public nn::Block {
 public:
  explicit Table(TrunkOutput trunk) : trunk_(std::move(trunk)) {}
  void declare(nn::Params& params) override { table_ = declare_table(params, trunk_); }
  nn::Outcome forward(nn::Flow /*in*/, const nn::Batch& batch, nn::StepContext& context) override {
    return {.flow = {.diff = {nn::embedding(batch.tensor("input_ids"), *table_, context)}}};
  }

 private:
  TrunkOutput trunk_;
  Param* table_ = nullptr;
};

Trunk lookup_trunk(NormKind kind) {
  Trunk trunk{
      .output = {.hidden_size = kC,
                 .norm = {kind, 1e-5},
                 .norm_name = "final",
                 .vocabulary = {"table", kVocab, /*tied=*/true},
                 .init_std = 1.0,
                 .heads = {.token = HeadSpec{},
                           .masked_lm = HeadSpec{},
                           .pair = HeadSpec{.output = "pair", .output_bias = "pair.bias"}}}};
  trunk.blocks.push_back(
      {"table", [output = trunk.output] { return std::make_unique<Table>(output); }});
  return trunk;
}

Gpt2Shape small() {
  Gpt2Shape shape;
  shape.num_layers = 2;
  shape.hidden_size = kC;
  shape.num_heads = 4;
  shape.ffn_hidden_size = 32;
  shape.vocab_size = kVocab;
  shape.max_positions = kT;
  shape.init_std = 0.3;
  return shape;
}

nn::Batch batch_of() {
  const at::Tensor ids = at::randint(
      kVocab, {kB, kT}, at::make_generator<at::CPUGeneratorImpl>(std::uint64_t{3}), at::kLong);
  at::Tensor mask = at::ones({kB, kT}, at::kLong);
  mask[1].narrow(0, 4, 3).zero_();
  mask[2].narrow(0, 1, 6).zero_();
  mask[3].narrow(0, 0, 2).zero_();  // padding on the left
  nn::Batch batch = test::make_batch(ids);
  batch.set("attention_mask", mask);
  batch.set("label", at::tensor(std::vector<std::int64_t>{2, 0, 1, -100, 1}, at::kLong));
  return batch;
}
const std::vector<std::int64_t> kLast = {6, 3, 0, 6, 6};

double error_of(const at::Tensor& ours, const at::Tensor& expected) {
  const at::Tensor wanted = expected.detach().to(at::kDouble);
  return (ours.to(at::kDouble) - wanted).norm().item<double>() / wanted.norm().item<double>();
}

/// The hidden states of each sample's last token, normalized, and the cross-entropy of their
/// logits.
struct Reference {
  std::map<std::string, at::Tensor> weights;
  at::Tensor logits_BL, loss;

  Reference(const ModelRunner& runner, NormKind kind, const nn::Batch& batch, double smoothing) {
    for (const auto& [name, weight] : runner.weights)
      weights[name] = weight.to(at::kDouble).set_requires_grad(true);
    const at::Tensor last_B =
        batch.tensor("input_ids").gather(1, at::tensor(kLast, at::kLong).unsqueeze(1)).squeeze(1);
    const at::Tensor x_BC = weights.at("table").index_select(0, last_B);
    const at::Tensor normed_BC =
        kind == NormKind::LayerNorm
            ? at::layer_norm(x_BC, {kC}, weights.at("final.weight"), weights.at("final.bias"), 1e-5)
            : x_BC * (x_BC.square().mean(1, true) + 1e-5).rsqrt() * weights.at("final.weight");
    logits_BL = at::matmul(normed_BC, weights.at("score.weight").t());
    loss = at::cross_entropy_loss(
        logits_BL, batch.tensor("label"), {}, at::Reduction::Sum, -100, smoothing);
  }
  at::Tensor gradient(const std::string& name, double labels) {
    return torch::autograd::grad({loss / labels}, {weights.at(name)}, {}, true).front();
  }
};

TEST(SequenceClassification, IsTheCrossEntropyOfALinearLayerOnTheLastToken) {
  for (const NormKind kind : {NormKind::LayerNorm, NormKind::RmsNorm}) {
    for (const double smoothing : {0.0, 0.2}) {
      json::Value chosen = three_labels();
      chosen["label_smoothing"] = json::Value::number(smoothing);
      ModelRunner runner(with_objective(lookup_trunk(kind), "sequence_classification", chosen));
      runner.initialize(1);
      const nn::Batch batch = batch_of();

      const double loss = runner.train(batch);

      Reference reference(runner, kind, batch, smoothing);
      EXPECT_NEAR(loss, reference.loss.item<double>() / 4, kTolerance * loss);
      EXPECT_EQ(runner.grads.size(), kind == NormKind::LayerNorm ? 4U : 3U);
      for (const auto& [name, grad] : runner.grads)
        EXPECT_LT(error_of(grad, reference.gradient(name, 4)), kTolerance) << name;
    }
  }
}

/// The labels of batch_of() that count: 2, 0, 1 and 1.
TEST(SequenceClassification, WeighsClassesAndEasyLabels) {
  const std::vector<double> weights = {0.5, 2.0, 1.5};
  for (const double gamma : {0.0, 2.0}) {
    SCOPED_TRACE(gamma);
    json::Value chosen = options(R"({"num_labels": 3, "class_weights": [0.5, 2, 1.5]})");
    chosen["focal_gamma"] = json::Value::number(gamma);
    ModelRunner runner(
        with_objective(lookup_trunk(NormKind::RmsNorm), "sequence_classification", chosen));
    runner.initialize(1);
    const nn::Batch batch = batch_of();

    const double loss = runner.train(batch);

    Reference reference(runner, NormKind::RmsNorm, batch, 0.0);
    const at::Tensor p_BL = at::softmax(reference.logits_BL, 1);
    at::Tensor sum = at::zeros({}, at::kDouble);
    for (const auto& [row, label] : {std::pair{0, 2}, {1, 0}, {2, 1}, {4, 1}}) {
      const at::Tensor p = p_BL[row][label];
      sum = sum - weights[static_cast<std::size_t>(label)] * (1 - p).pow(gamma) * p.log();
    }
    // Divided by the sum of the weights, like torch's CrossEntropyLoss; the focal loss by the
    // number of labels.
    const double whole = gamma == 0 ? 1.5 + 0.5 + 2.0 + 2.0 : 4.0;
    reference.loss = sum;
    EXPECT_NEAR(loss, sum.item<double>() / whole, kTolerance * loss);
    for (const auto& [name, grad] : runner.grads)
      EXPECT_LT(error_of(grad, reference.gradient(name, whole)), kTolerance) << name;
    EXPECT_EQ(runner.instance().objective()->denominators(batch), (std::vector<double>{4.0, 6.0}));
  }
}

TEST(SequenceClassification, ReportsLossAndAccuracyInEvaluation) {
  ModelRunner runner(with_objective(lookup_trunk(NormKind::LayerNorm),
                                    "sequence_classification",
                                    options(R"({"num_labels": 3, "label_smoothing": 0.3})")));
  runner.initialize(1);
  const nn::Batch batch = batch_of();
  const Reference reference(runner, NormKind::LayerNorm, batch, 0.0);
  nn::StepContext context(nn::Mode::Eval, 1);
  context.want_logits = true;

  const nn::Outcome out = runner.infer(batch, context);

  ASSERT_EQ(out.terms.size(), 2U);
  EXPECT_EQ(out.terms[0].name, "loss");
  EXPECT_NEAR(out.terms[0].sum.item<double>(), reference.loss.item<double>(), 1e-5);
  EXPECT_EQ(out.terms[1].name, "accuracy");
  EXPECT_EQ(out.terms[1].weight, 0.0);
  const at::Tensor right = reference.logits_BL.argmax(1).eq(batch.tensor("label"));
  EXPECT_EQ(out.terms[1].sum.item<double>(), right.sum().item<double>());
  EXPECT_LT(error_of(out.outputs.at("logits"), reference.logits_BL), kTolerance);
  EXPECT_EQ(out.outputs.at("logits").scalar_type(), at::kFloat);
  EXPECT_EQ(runner.instance().objective()->denominators(batch), std::vector<double>{4.0});
}

TEST(SequenceClassification, PredictsWithoutLabelsAndReadsTheLastTokenWithoutAMask) {
  ModelRunner runner(
      with_objective(gpt2_trunk(small()), "sequence_classification", three_labels()));
  runner.initialize(1);
  const nn::Batch labelled = batch_of();
  nn::Batch whole = test::make_batch(labelled.tensor("input_ids").narrow(0, 0, 1)),
            padded = labelled.samples(0, 1);
  padded.set("label", at::zeros({1}, at::kLong));
  nn::StepContext eval(nn::Mode::Eval, 1), quiet(nn::Mode::Eval, 1);
  eval.want_logits = true;

  const nn::Outcome predicted = runner.infer(whole, eval), scored = runner.infer(padded, eval),
                    silent = runner.infer(padded, quiet);

  EXPECT_TRUE(predicted.terms.empty());
  EXPECT_EQ(predicted.outputs.at("logits").sizes(), (std::vector<std::int64_t>{1, kLabels}));
  EXPECT_TRUE(at::equal(predicted.outputs.at("logits"), scored.outputs.at("logits")));
  EXPECT_TRUE(silent.outputs.empty());
}

TEST(SequenceClassification, DoesNotLookAtPadding) {
  ModelRunner runner(
      with_objective(gpt2_trunk(small()), "sequence_classification", three_labels()));
  runner.initialize(1);
  nn::Batch batch = batch_of();
  const double before = runner.train(batch);
  at::Tensor changed = batch.tensor("input_ids").clone();
  changed[1].narrow(0, 4, 3).fill_(5);
  changed[3].fill_(5);  // its label is ignored
  batch.set("input_ids", changed);

  EXPECT_EQ(runner.train(batch), before);
}

/// The derivative of the loss along the gradient, by central differences.
TEST(SequenceClassification, HasTheGradientOfItsLossThroughAWholeTrunk) {
  ModelRunner runner(
      with_objective(gpt2_trunk(small()), "sequence_classification", three_labels()));
  runner.initialize(1);
  const nn::Batch batch = batch_of();
  runner.train(batch);
  const ModelRunner::Tensors grads = runner.grads, weights = runner.weights;
  double square = 0;
  for (const auto& [name, grad] : grads)
    square += grad.to(at::kDouble).square().sum().item<double>();
  const auto loss_at = [&](double step) {
    runner.fill([&](const ParamInfo& info, const at::Tensor& out) {
      out.copy_(weights.at(info.name).view({-1})).add_(grads.at(info.name).reshape({-1}), step);
    });
    return runner.train(batch);
  };
  const double step = 2e-3 / std::sqrt(square);
  const double slope = (loss_at(step) - loss_at(-step)) / (2 * step);

  // The loss is computed in float32, whose rounding is 1e-7 of it.
  EXPECT_NEAR(slope, square, 2e-3 * square);
}

TEST(SequenceClassification, OfSeveralHeadsSumsTheirLossesByWeight) {
  ModelRunner runner(with_objective(lookup_trunk(NormKind::RmsNorm),
                                    "sequence_classification",
                                    options(R"({"num_labels": 5, "heads": [
                                        {"name": "topic", "labels": ["a", "b", "c"]},
                                        {"name": "mood", "labels": ["d", "e"], "weight": 0.5}]})")));
  runner.initialize(1);
  nn::Batch batch = batch_of();
  const at::Tensor topic_B = batch.tensor("label");
  const at::Tensor mood_B = at::tensor(std::vector<std::int64_t>{1, -100, 0, 1, -100}, at::kLong);
  batch.set("label", at::stack({topic_B, mood_B}, 1));

  const double loss = runner.train(batch);

  nn::Batch of_topic = batch;
  of_topic.set("label", topic_B);
  Reference reference(runner, NormKind::RmsNorm, of_topic, 0.0);
  const at::Tensor topic = at::cross_entropy_loss(reference.logits_BL.narrow(1, 0, 3), topic_B);
  const at::Tensor mood = at::cross_entropy_loss(reference.logits_BL.narrow(1, 3, 2), mood_B);
  reference.loss = topic + 0.5 * mood;
  EXPECT_NEAR(loss, reference.loss.item<double>(), kTolerance * loss);
  for (const auto& [name, grad] : runner.grads)
    EXPECT_LT(error_of(grad, reference.gradient(name, 1)), kTolerance) << name;
  nn::StepContext context(nn::Mode::Eval, 1);
  const nn::Outcome out = runner.infer(batch, context);
  ASSERT_EQ(out.terms.size(), 4U);
  EXPECT_EQ(out.terms[2].name, "mood_loss");
  EXPECT_EQ(out.terms[2].weight, 0.5);
  EXPECT_NEAR(out.terms[2].sum.item<double>(), mood.item<double>() * 3, 1e-5);
  EXPECT_EQ(out.terms[3].name, "mood_accuracy");
  EXPECT_EQ(out.terms[3].sum.item<double>(),
            reference.logits_BL.narrow(1, 3, 2).argmax(1).eq(mood_B).sum().item<double>());
  EXPECT_EQ(runner.instance().objective()->denominators(batch), (std::vector<double>{4.0, 3.0}));
}

/// Masked tokens at two places of each sample, and a label of the pair.
nn::Batch masked_batch() {
  nn::Batch batch = batch_of();
  at::Tensor labels = at::full({kB, kT}, -100, at::kLong);
  for (std::int64_t b = 0; b < kB; ++b) {
    labels[b][b % kT] = (3 * b + 1) % kVocab;
    labels[b][(b + 2) % kT] = (b + 2) % kVocab;
  }
  batch.set("labels", labels);
  batch.set("pair_label", at::tensor(std::vector<std::int64_t>{1, 0, 0, 1, 0}, at::kLong));
  return batch;
}

TEST(MaskedLmPairs, AddTheLossOfThePairToThatOfTheTokens) {
  ModelRunner runner(with_objective(
      lookup_trunk(NormKind::RmsNorm), "masked_lm_pairs", options(R"({"pairs": "sop"})")));
  runner.initialize(1);
  const nn::Batch batch = masked_batch();

  const double loss = runner.train(batch);

  std::map<std::string, at::Tensor> weights;
  for (const auto& [name, weight] : runner.weights)
    weights[name] = weight.to(at::kDouble).set_requires_grad(true);
  const at::Tensor x_BTC =
      weights.at("table").index_select(0, batch.tensor("input_ids").flatten()).view({kB, kT, kC});
  const at::Tensor normed_BTC =
      x_BTC * (x_BTC.square().mean(2, true) + 1e-5).rsqrt() * weights.at("final.weight");
  const at::Tensor logits_NV = at::matmul(normed_BTC, weights.at("table").t()).flatten(0, 1);
  const at::Tensor logits_B2 =
      at::matmul(normed_BTC.select(1, 0), weights.at("pair.weight").t()) + weights.at("pair.bias");
  const at::Tensor labels_N = batch.tensor("labels").flatten(), pair_B = batch.tensor("pair_label");
  const at::Tensor expected =
      at::cross_entropy_loss(logits_NV, labels_N) + at::cross_entropy_loss(logits_B2, pair_B);
  EXPECT_NEAR(loss, expected.item<double>(), kTolerance * loss);
  for (const auto& [name, grad] : runner.grads) {
    const at::Tensor wanted =
        torch::autograd::grad({expected}, {weights.at(name)}, {}, /*retain_graph=*/true).front();
    EXPECT_LT(error_of(grad, wanted), kTolerance) << name;
  }

  for (const bool want_logits : {false, true}) {
    nn::StepContext context(nn::Mode::Eval, 1);
    context.want_logits = want_logits;
    const nn::Outcome out = runner.infer(batch, context);
    ASSERT_EQ(out.terms.size(), 4U);
    const auto expect = [&](std::size_t i, const char* name, double weight, double value) {
      EXPECT_EQ(out.terms[i].name, name);
      EXPECT_EQ(out.terms[i].weight, weight);
      EXPECT_EQ(out.terms[i].denominator, i < 2 ? 0 : 1);
      EXPECT_NEAR(out.terms[i].sum.item<double>(), value, 1e-4) << name;
    };
    expect(0, "mlm_loss", 1.0, at::cross_entropy_loss(logits_NV, labels_N).item<double>() * 2 * kB);
    expect(1, "mlm_accuracy", 0.0, logits_NV.argmax(1).eq(labels_N).sum().item<double>());
    expect(2, "sop_loss", 1.0, at::cross_entropy_loss(logits_B2, pair_B).item<double>() * kB);
    expect(3, "sop_accuracy", 0.0, logits_B2.argmax(1).eq(pair_B).sum().item<double>());
  }
  EXPECT_EQ(runner.instance().objective()->denominators(batch), (std::vector<double>{2 * kB, kB}));
}

/// A batch of samples whose prefixes have these lengths.
nn::Batch prefix_batch(const std::vector<std::int64_t>& lengths) {
  nn::Batch batch = test::make_batch(batch_of().tensor("input_ids"));
  batch.set("prefix_lengths", at::tensor(lengths, at::kLong));
  at::Tensor labels = batch.tensor("input_ids").roll(-1, 1);
  labels.select(1, kT - 1).fill_(-100);
  batch.set("labels", labels);
  return batch;
}

at::Tensor logits_of(ModelRunner& runner, const nn::Batch& batch) {
  nn::StepContext context(nn::Mode::Eval, 1);
  context.want_logits = true;
  return runner.infer(batch, context).outputs.at("logits").clone();
}

// Token j is changed: the logits of exactly those tokens change that see it.
TEST(PrefixLm, SeesThePrefixInBothDirectionsAndTheRestBackwards) {
  ModelRunner runner(with_objective(gpt2_trunk(small()), "prefix_lm"));
  runner.initialize(1);
  const std::vector<std::int64_t> lengths = {1, 3, 4, 6, 7};
  const nn::Batch batch = prefix_batch(lengths);
  const at::Tensor before = logits_of(runner, batch);

  for (std::int64_t j = 0; j < kT; ++j) {
    nn::Batch changed = batch;
    at::Tensor ids = batch.tensor("input_ids").clone();
    ids.select(1, j).add_(1).remainder_(kVocab);
    changed.set("input_ids", ids);
    const at::Tensor same_BT = logits_of(runner, changed).eq(before).all(2);
    for (std::int64_t b = 0; b < kB; ++b) {
      const std::int64_t prefix = lengths[static_cast<std::size_t>(b)];
      for (std::int64_t t = 0; t < kT; ++t) {
        const bool sees = j <= t || (t < prefix && j < prefix);
        EXPECT_EQ(same_BT[b][t].item<bool>(), !sees)
            << "prefix " << prefix << ", token " << t << " and " << j;
      }
    }
  }
}

TEST(PrefixLm, OfOneTokenIsCausal) {
  ModelRunner prefix(with_objective(gpt2_trunk(small()), "prefix_lm")),
      causal(with_objective(gpt2_trunk(small()), "causal_lm"));
  prefix.initialize(1);
  causal.initialize(1);
  const nn::Batch batch = prefix_batch(std::vector<std::int64_t>(kB, 1));

  const double loss = prefix.train(batch), expected = causal.train(batch);

  EXPECT_NEAR(loss, expected, kTolerance * expected);
  for (const auto& [name, grad] : causal.grads)
    EXPECT_LT(error_of(prefix.grads.at(name), grad), 1e-5) << name;  // products of many roundings
}

/// The derivative of the loss along the gradient, by central differences.
TEST(PrefixLm, HasTheGradientOfItsLoss) {
  ModelRunner runner(with_objective(gpt2_trunk(small()), "prefix_lm"));
  runner.initialize(1);
  const nn::Batch batch = prefix_batch({1, 3, 4, 6, 7});
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
  const double step = 2e-3 / std::sqrt(square);

  const double slope = (loss_at(step) - loss_at(-step)) / (2 * step);

  // The loss is computed in float32, whose rounding is 1e-7 of it.
  EXPECT_NEAR(slope, square, 2e-3 * square);
}

// A cached prefix gives each next token the logits that it has in the whole text.
TEST(PrefixLm, ContinuesAPromptThatIsAPrefix) {
  ModelRunner runner(with_objective(gpt2_trunk(small()), "prefix_lm"));
  runner.initialize(1);
  constexpr std::int64_t kPrefix = 4;
  const nn::Batch whole = prefix_batch(std::vector<std::int64_t>(kB, kPrefix));
  const at::Tensor expected = logits_of(runner, whole);
  nn::StepContext context(nn::Mode::Prefill, 1);
  context.cache_capacity = kT;
  const auto next = [&](std::int64_t begin, std::int64_t count, std::int64_t prefix) {
    nn::Batch batch = test::make_batch(whole.tensor("input_ids").narrow(1, begin, count));
    batch.set("prefix_lengths", at::full({kB}, prefix, at::kLong));
    return runner.infer(batch, context).outputs.at("logits").select(1, -1).clone();
  };

  EXPECT_LT(error_of(next(0, kPrefix, kPrefix), expected.select(1, kPrefix - 1)), kTolerance);
  context.set_mode(nn::Mode::Decode);
  for (std::int64_t t = kPrefix; t < kT; ++t) {
    context.position = t;
    EXPECT_LT(error_of(next(t, 1, 0), expected.select(1, t)), kTolerance) << "token " << t;
  }
}

struct Ranks {
  const char* name;
  mesh::Mesh::Sizes mesh;
  nn::TensorMode mode = nn::TensorMode::OneD;
  parallel::StageLayout stages = {};
};

// Five samples do not divide among the ranks of a grid, some of which have none.
TEST(SequenceClassification, IsTheSameOnRanksThatHoldTheModelBetweenThem) {
  const nn::Model model =
      with_objective(gpt2_trunk(small()), "sequence_classification", three_labels());
  const nn::Batch batch = batch_of();
  ModelRunner one(model);
  one.initialize(1);
  const double expected = one.train(batch);
  const std::vector<Ranks> layouts = {
      {"1d", {.tp_col = 2}},
      {"2d", {.tp_row = 2, .tp_col = 2}, nn::TensorMode::TwoD},
      {"2.5d", {.tp_depth = 2, .tp_row = 2, .tp_col = 2}, nn::TensorMode::TwoD},
      {"3d", {.tp_depth = 2, .tp_row = 2, .tp_col = 2}, nn::TensorMode::ThreeD},
      {"stages", {.pp = 2}, nn::TensorMode::OneD, {.stages = 2, .bounds = {0, 2, 4}}}};
  for (const Ranks& ranks : layouts) {
    comm::run_threads(mesh::Mesh(ranks.mesh), [&](comm::World& world) {
      SCOPED_TRACE(std::string(ranks.name) + ", rank " + std::to_string(world.rank()));
      ModelRunner runner(model, DType::F32, &world, ranks.stages, ranks.mode);
      runner.initialize(1);

      EXPECT_NEAR(runner.train(batch), expected, 1e-5 * expected);
      for (const auto& [name, grad] : runner.grads) {
        const at::Tensor wanted = ModelRunner::held(*runner.infos.at(name), one.grads.at(name));
        if (wanted.norm().item<double>() < 1e-6) continue;  // key biases have none in theory
        EXPECT_LT(error_of(grad, wanted), 1e-5) << name;
      }
      nn::StepContext context(nn::Mode::Eval, 1), alone(nn::Mode::Eval, 1);
      context.want_logits = alone.want_logits = true;
      const nn::Outcome out = runner.infer(batch, context);
      if (out.outputs.contains("logits")) {  // the stage that has the objective
        EXPECT_LT(error_of(out.outputs.at("logits"), one.infer(batch, alone).outputs.at("logits")),
                  1e-5);
      }
    });
  }
}

TEST(SequenceClassification, RefusesLabelsItDoesNotHaveAndGeneration) {
  ModelRunner runner(
      with_objective(gpt2_trunk(small()), "sequence_classification", three_labels()));
  runner.initialize(1);
  nn::Batch batch = batch_of();
  nn::StepContext prefill(nn::Mode::Prefill, 1);
  EXPECT_THROW(runner.infer(batch, prefill), Error);

  batch.set("label", at::tensor(std::vector<std::int64_t>{2, 0, 3, 1, 1}, at::kLong));
  try {
    runner.train(batch);
    FAIL() << "a label outside of the model's was taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::Data);
    EXPECT_THAT(error.what(), HasSubstr("the label 3 of sample 2"));
  }
}

TEST(Objectives, NameTheNearestObjectiveAndOption) {
  const auto text_of = [](std::string_view objective, const std::string& chosen) {
    try {
      with_objective(gpt2_trunk(small()), objective, options(chosen));
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Error::Kind::Config);
      return error.text();
    }
    return std::string("nothing was refused");
  };

  EXPECT_THAT(text_of("causal_ml", "{}"), HasSubstr("causal_lm"));
  EXPECT_THAT(text_of("sequence_classification", R"({"num_label": 3})"), HasSubstr("num_labels"));
  EXPECT_THAT(text_of("sequence_classification", R"({"num_labels": 0})"),
              HasSubstr("options.json:1"));
}

/// A third objective, as a separate file would add it: the mean square of all hidden states.
class MeanSquare final : public nn::Objective {
 public:
  explicit MeanSquare(const TrunkOutput& trunk) : trunk_(trunk), norm_(trunk.norm) {}
  void declare(nn::Params& params) override {
    norm_.declare(params, trunk_.norm_name, trunk_.hidden_size, kGlobalName);
  }
  nn::Outcome forward(nn::Flow in, const nn::Batch& /*batch*/, nn::StepContext& context) override {
    return {.terms = {{.name = "loss",
                       .sum = nn::flow_sum(norm_(in.diff.at(0), context).square(), context)}}};
  }
  [[nodiscard]] std::vector<double> denominators(const nn::Batch& batch) const override {
    return {static_cast<double>(batch.tensor("input_ids").numel() * trunk_.hidden_size)};
  }

 private:
  TrunkOutput trunk_;
  Norm norm_;
};
nn::BlockSpec make_mean_square(const TrunkOutput& trunk,
                               const json::Value& /*options*/,
                               config::Problems& /*problems*/,
                               config::Origins& /*origins*/) {
  return {"head", [trunk] { return std::make_unique<MeanSquare>(trunk); }};
}
TESSERA_OBJECTIVE("mean_square", make_mean_square);
TESSERA_OBJECTIVE_TRAITS("mean_square", mean_square, {.predicts = Predicts::TextClass});

TEST(Objectives, ThatAreRegisteredCompleteAnyTrunk) {
  for (const std::string& name : objectives().names()) {
    if (name == "embedding") continue;  // it has no loss
    for (const NormKind kind : {NormKind::LayerNorm, NormKind::RmsNorm}) {
      SCOPED_TRACE(name);
      Trunk trunk = lookup_trunk(kind);
      const bool images = name == "image_classification";
      trunk.output.modality = images ? Modality::Images : Modality::Text;
      if (name == "seq2seq") trunk.output.target = TargetText();
      trunk.output.heads.pooling = images ? Pooling::FirstToken : Pooling::LastToken;
      ModelRunner runner(with_objective(std::move(trunk), name));
      runner.initialize(1);
      nn::Batch batch = batch_of();
      batch.set("label", at::zeros({kB}, at::kLong));
      batch.set("labels", at::zeros({kB, kT}, at::kLong));
      batch.set("pair_label", at::zeros({kB}, at::kLong));
      // Preferences have two texts per row.
      batch.set("completion", at::ones({kB, kT}, at::kLong));
      batch.set("second_text", at::full({kB}, 3, at::kLong));
      batch.set("reference", at::zeros({kB, 2}, at::kDouble));
      batch.set("wanted", at::ones({kB}, at::kLong));
      batch.set("advantages", at::full({kB, kT}, -1.0, at::kDouble));
      batch.set("old_values", at::zeros({kB, kT}, at::kDouble));
      batch.set("returns", at::ones({kB, kT}, at::kDouble));

      const double loss = runner.train(batch);

      EXPECT_GT(loss, 0.0);
      for (const auto& [parameter, grad] : runner.grads)
        EXPECT_LT(grad.abs().max().item<double>(), 100.0) << parameter;  // the sinks hold 123
    }
  }
}

}  // namespace
}  // namespace tessera::models
