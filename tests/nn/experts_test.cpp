// SPDX-License-Identifier: Apache-2.0
// labels: fast
// A layer of experts and the terms that balance it, compared with the same formulas in libtorch's
// own differentiable operations.
#include "tessera/nn/experts.h"

#include <string>
#include <vector>

#include "support/source_dir.h"
#include "support/test_param.h"
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include "tessera/base/files.h"
#include "tessera/config/json.h"
#include "tessera/nn/denominators.h"

namespace tessera::nn::of_experts {
namespace {

using test::relative_error;
using test::TestParam;

constexpr std::int64_t kB = 2, kT = 5, kC = 6, kF = 8, kE = 4, kN = kB * kT;

at::Tensor wave(const std::vector<std::int64_t>& shape, double phase, double scale = 0.5) {
  std::int64_t numel = 1;
  for (const std::int64_t size : shape)
    numel *= size;
  return (at::arange(numel, at::kDouble) * 1.37 + phase)
      .sin()
      .mul(scale)
      .to(at::kFloat)
      .view(shape);
}

/// The parameters of a layer with all parts.
struct Layer {
  explicit Layer(bool gated, bool biases)
      : router(wave({kE, kC}, 0.1, 1.0)),
        router_bias(wave({kE}, 0.2)),
        input(gated ? wave({kE, 2, kF, kC}, 0.3) : wave({kE, kF, kC}, 0.3)),
        input_bias(gated ? wave({kE, 2, kF}, 0.4) : wave({kE, kF}, 0.4)),
        output(wave({kE, kC, kF}, 0.5)),
        output_bias(wave({kE, kC}, 0.6)),
        with_biases(biases) {}
  [[nodiscard]] ExpertWeights weights() {
    const auto at = [](TestParam& param) { return const_cast<Param*>(&param); };
    ExpertWeights out;
    out.router = at(router);
    out.input = at(input);
    out.output = at(output);
    if (!with_biases) return out;
    out.router_bias = at(router_bias);
    out.input_bias = at(input_bias);
    out.output_bias = at(output_bias);
    return out;
  }
  TestParam router, router_bias, input, input_bias, output, output_bias;
  bool with_biases;
};

/// The results of a layer: its output, and the gradients of sum(output * upstream) plus terms.
struct ExpertsResult {
  at::Tensor y, dx;
  std::vector<at::Tensor> dparams;
};

struct ExpertsCase {
  ops::RouterSpec router;
  ops::CapacitySpec capacity = {};
  bool gated = true, biases = false;
  double clamp = 0.0;
  BalanceSpec balance = {};
};

ExpertsResult ours_of(const ExpertsCase& one,
                      Layer& layer,
                      std::vector<Term>* all_terms = nullptr) {
  StepContext context(Mode::Train, 1);
  context.block_name = "layer";
  Batch batch;
  batch.sample_ids = {0, 1};
  batch.set("input_ids", at::zeros({kB, kT}, at::kLong));
  context.batch = &batch;
  const at::Tensor x = wave({kB, kT, kC}, 0.7).set_requires_grad(true);
  const ExpertWeights weights = layer.weights();
  const Routed routed = route(x, weights, one.router, one.capacity, context);
  const at::Tensor y = apply_experts(x,
                                     routed,
                                     weights,
                                     {.gated = one.gated, .clamp = one.clamp},
                                     one.router.weighs_inputs,
                                     nullptr,
                                     context);
  std::vector<Term> terms;
  add_balance_terms(routed, one.balance, context, terms);
  at::Tensor loss = (y * wave({kB, kT, kC}, 0.9)).sum();
  for (const Term& term : terms)
    loss = loss + term.sum * term.weight;
  if (all_terms != nullptr) *all_terms = terms;
  std::vector<at::Tensor> inputs = {x};
  for (const Param* param : {weights.router,
                             weights.router_bias,
                             weights.input,
                             weights.input_bias,
                             weights.output,
                             weights.output_bias}) {
    if (param != nullptr) inputs.push_back(param->tensor());
  }
  const auto grads = torch::autograd::grad(
      {loss}, inputs, {}, std::nullopt, /*create_graph=*/false, /*allow_unused=*/true);
  ExpertsResult out = {.y = y.detach(), .dx = grads[0], .dparams = {}};
  out.dparams = {layer.router.grad(), layer.input.grad(), layer.output.grad()};
  if (one.biases) {
    out.dparams.push_back(layer.router_bias.grad());
    out.dparams.push_back(layer.input_bias.grad());
    out.dparams.push_back(layer.output_bias.grad());
  }
  return out;
}

at::Tensor activated(const at::Tensor& h, const ExpertsCase& one) {
  const at::Tensor gate = h.narrow(-1, 0, kF);
  if (!one.gated) return at::silu(gate);
  const at::Tensor up = h.narrow(-1, kF, kF);
  if (one.clamp == 0.0) return at::silu(gate) * up;
  const at::Tensor g = gate.clamp_max(one.clamp);
  return (up.clamp(-one.clamp, one.clamp) + 1) * g * at::sigmoid(1.702 * g);
}

/// The same in fp64, expert by expert, with the given choices.
ExpertsResult expected_of(const ExpertsCase& one, Layer& layer, const at::Tensor& experts_NK) {
  const auto leaf = [](const at::Tensor& value) {
    return value.detach().to(at::kDouble).set_requires_grad(true);
  };
  const at::Tensor x = leaf(wave({kB, kT, kC}, 0.7)), router = leaf(layer.router.tensor()),
                   input = leaf(layer.input.tensor()), output = leaf(layer.output.tensor()),
                   router_bias = leaf(layer.router_bias.tensor()),
                   input_bias = leaf(layer.input_bias.tensor()),
                   output_bias = leaf(layer.output_bias.tensor());
  const at::Tensor rows = x.view({kN, kC});
  at::Tensor logits = at::matmul(rows, router.t());
  if (one.biases) logits = logits + router_bias;
  const bool sigmoids = one.router.score == ops::RouterScore::Sigmoid;
  const at::Tensor p = sigmoids ? at::sigmoid(logits) : at::softmax(logits, -1);
  const at::Tensor chosen = experts_NK.to(at::kLong), kept = chosen.ge(0).to(at::kDouble);
  at::Tensor w = p.gather(1, chosen.clamp_min(0)) * kept;
  if (one.router.normalize) {  // a token that no expert keeps has weights of 0
    const at::Tensor sum = w.sum(-1, true) + one.router.normalize_eps;
    w = w / at::where(sum > 0, sum, at::ones_like(sum));
  }
  w = w * one.router.scale;
  at::Tensor y = at::zeros({kN, kC}, at::kDouble);
  for (std::int64_t e = 0; e < kE; ++e) {
    const at::Tensor share = (w * chosen.eq(e).to(at::kDouble)).sum(-1, true);
    const at::Tensor in = one.router.weighs_inputs ? rows * share : rows;
    at::Tensor h = at::matmul(in, input[e].view({-1, kC}).t());
    if (one.biases) h = h + input_bias[e].view({-1});
    at::Tensor out = at::matmul(activated(h, one), output[e].t());
    if (one.biases) out = out + output_bias[e];
    const at::Tensor here = chosen.eq(e).any(-1, true).to(at::kDouble);
    y = y + (one.router.weighs_inputs ? here : share) * out;
  }
  at::Tensor loss = (y.view({kB, kT, kC}) * wave({kB, kT, kC}, 0.9).to(at::kDouble)).sum();
  const at::Tensor scores = sigmoids ? p / p.sum(-1, true) : p;
  const auto balance = [&](double coefficient, std::int64_t groups) {
    at::Tensor sum = at::zeros({}, at::kDouble);
    if (coefficient == 0.0) return sum;
    for (std::int64_t g = 0; g < groups; ++g) {
      const std::int64_t n = kN / groups;
      const at::Tensor one_hot = at::one_hot(chosen.narrow(0, g * n, n), kE).to(at::kDouble);
      const at::Tensor f = one_hot.sum(1).mean(0), P = scores.narrow(0, g * n, n).mean(0);
      sum = sum + kE * (f * P).sum();
    }
    return coefficient * sum;
  };
  loss = loss + balance(one.balance.micro_batch, 1) + balance(one.balance.sequence, kB) +
         one.balance.z * at::logsumexp(logits, -1).square().sum();
  std::vector<at::Tensor> inputs = {x, router, input, output};
  if (one.biases) inputs.insert(inputs.end(), {router_bias, input_bias, output_bias});
  const auto grads = torch::autograd::grad({loss}, inputs);
  return {.y = y.detach().view({kB, kT, kC}),
          .dx = grads[0],
          .dparams = {grads.begin() + 1, grads.end()}};
}

void expect_equal(const ExpertsCase& one) {
  Layer layer(one.gated, one.biases);
  const ExpertsResult got = ours_of(one, layer);
  StepContext context(Mode::Train, 1);
  const at::Tensor experts =
      route(wave({kB, kT, kC}, 0.7), layer.weights(), one.router, one.capacity, context)
          .choices.experts_NK;
  const ExpertsResult wanted = expected_of(one, layer, experts);
  EXPECT_LT(relative_error(got.y, wanted.y), 2e-6);
  EXPECT_LT(relative_error(got.dx, wanted.dx), 5e-6);
  ASSERT_EQ(got.dparams.size(), wanted.dparams.size());
  for (std::size_t i = 0; i < got.dparams.size(); ++i)
    EXPECT_LT(relative_error(got.dparams[i], wanted.dparams[i]), 5e-6) << "parameter " << i;
}

TEST(Experts, ComputeTheWeightedSumOfTheChosenOnes) {
  expect_equal({.router = {.top_k = 2, .normalize = true}});
  expect_equal({.router = {.top_k = 1}, .gated = false});
  expect_equal({.router = {.top_k = 4, .normalize = true}, .biases = true});
  expect_equal({.router = {.top_k = 2, .bias = true}, .biases = true, .clamp = 0.3});
  expect_equal({.router = {.top_k = 2,
                           .score = ops::RouterScore::Sigmoid,
                           .normalize = true,
                           .normalize_eps = 1e-20,
                           .scale = 2.5}});
  expect_equal({.router = {.top_k = 1, .score = ops::RouterScore::Sigmoid, .weighs_inputs = true}});
}

TEST(Experts, AddNothingForDroppedChoices) {
  expect_equal({.router = {.top_k = 2, .normalize = true},
                .capacity = {.factor = 0.6, .normalize_after = true}});
  expect_equal({.router = {.top_k = 2}, .capacity = {.factor = 0.4, .per_sample = true}});
}

TEST(Experts, HaveTheGradientsOfTermsThatBalanceThem) {
  expect_equal({.router = {.top_k = 2, .normalize = true},
                .balance = {.micro_batch = 0.7, .sequence = 0.3, .z = 0.2}});
  expect_equal({.router = {.top_k = 2, .score = ops::RouterScore::Sigmoid, .normalize = true},
                .balance = {.micro_batch = 0.7, .z = 0.2}});
}

// DeepSpeed's terms: the balance of one micro-batch, so that perfect balance gives 1.
TEST(Balance, IsThatOfDeepSpeed) {
  const auto path = test::source_dir() / "tests/ops/expert_gates.json";
  const json::Value answers = json::parse_strict(files::read(path), path.string());
  for (const json::Value& one : answers.find("deepspeed")->items()) {
    if (one.find("gate")->as_string() == "top2") continue;  // counts first choices alone
    const auto& rows = one.find("logits")->items();
    const auto N = std::ssize(rows), E = std::ssize(rows.front().items());
    const at::Tensor logits = at::empty({N, E}, at::kFloat);
    for (std::int64_t n = 0; n < N; ++n) {
      for (std::int64_t e = 0; e < E; ++e)
        logits[n][e] =
            rows[static_cast<std::size_t>(n)].items()[static_cast<std::size_t>(e)].as_double();
    }
    StepContext context(Mode::Train, 1);
    Routed routed;
    routed.logits_NE = logits;
    routed.choices = ops::choose_experts(logits, {}, {.top_k = *one.find("k")->as_integer()});
    routed.scores_NE = routed.choices.scores_NE;
    std::vector<Term> terms;
    add_balance_terms(routed, {.micro_batch = 1.0, .per_choice = true}, context, terms);
    ASSERT_EQ(terms.size(), 1U);
    EXPECT_NEAR(terms[0].sum.item<double>(), one.find("loss")->as_double(), 1e-6);
    EXPECT_EQ(terms[0].denominator, kPerMicroBatch);
  }
}

TEST(Balance, DoesNotCountPadding) {
  Layer layer(true, false);
  const ExpertsCase one = {.router = {.top_k = 2},
                           .balance = {.micro_batch = 1.0, .sequence = 1.0, .z = 1.0}};
  const at::Tensor x = wave({kB, kT, kC}, 0.7);
  const auto terms_of = [&](const at::Tensor& tokens, const at::Tensor& mask) {
    StepContext context(Mode::Train, 1);
    Batch batch;
    for (std::int64_t b = 0; b < tokens.size(0); ++b)
      batch.sample_ids.push_back(b);
    if (mask.defined()) batch.set("attention_mask", mask);
    context.batch = &batch;
    std::vector<Term> terms;
    add_balance_terms(
        route(tokens, layer.weights(), one.router, {}, context), one.balance, context, terms);
    std::vector<double> out;
    for (const Term& term : terms)
      out.push_back(term.sum.item<double>());
    return out;
  };
  const at::Tensor mask = at::ones({kB, kT}, at::kLong);
  mask.narrow(1, kT - 2, 2).zero_();
  const std::vector<double> padded = terms_of(x, mask), cut = terms_of(x.narrow(1, 0, kT - 2), {});
  ASSERT_EQ(padded.size(), 3U);
  for (std::size_t i = 0; i < 3; ++i)
    EXPECT_NEAR(padded[i], cut[i], 1e-6 * cut[i]);
}

TEST(Balance, OfOneLayerIsTheSameOverAllLayers) {
  Layer layer(true, false);
  StepContext context(Mode::Train, 1);
  const BalanceSpec spec = {.micro_batch = 1.0};
  const Routed routed = route(wave({kB, kT, kC}, 0.7), layer.weights(), {.top_k = 2}, {}, context);
  std::vector<Term> single, pooled;
  add_balance_terms(routed, spec, context, single);
  PooledBalance sums = no_balance(1, kE, at::kCPU);
  sums = add_to_pool(sums, routed, spec, context);
  sums = add_to_pool(sums, routed, spec, context);
  add_pooled_term(sums, spec, 2, pooled);
  EXPECT_NEAR(single[0].sum.item<double>(), pooled[0].sum.item<double>(), 1e-6);
}

TEST(ExpertLoad, IsCountedOnceByTheBackwardPass) {
  Layer layer(true, false);
  ExpertLoad load;
  const at::Tensor x = wave({kB, kT, kC}, 0.7).set_requires_grad(true);
  const auto run = [&](Mode mode) {
    StepContext context(mode, 1);
    const Routed routed = route(x, layer.weights(), {.top_k = 2}, {}, context);
    return apply_experts(x, routed, layer.weights(), {}, false, &load, context);
  };
  (void)run(Mode::Train);  // as before a block runs again
  EXPECT_TRUE(load.take().chosen_E.empty());
  StepContext context(Mode::Train, 1);
  const Routed routed = route(x, layer.weights(), {.top_k = 2}, {}, context);
  const at::Tensor y = apply_experts(x, routed, layer.weights(), {}, false, &load, context);
  (void)torch::autograd::grad({y.sum()}, {x});
  const ExpertLoad::Counts counts = load.take();
  std::int64_t all = 0;
  for (const std::int64_t count : counts.chosen_E)
    all += count;
  EXPECT_EQ(all, 2 * kN);
  EXPECT_TRUE(load.take().chosen_E.empty());
}

TEST(SigmoidGate, HasTheBitsOfARowAloneAndItsGradient) {
  const at::Tensor x = wave({7, 19}, 0.1).set_requires_grad(true),
                   gate = wave({7, 1}, 0.4, 2.0).set_requires_grad(true);
  const at::Tensor y = sigmoid_gate(x, gate);
  for (std::int64_t n = 0; n < 7; ++n)
    EXPECT_TRUE(at::equal(sigmoid_gate(x[n].unsqueeze(0), gate[n].unsqueeze(0))[0], y[n]));
  const at::Tensor up = wave({7, 19}, 0.8);
  const auto got = torch::autograd::grad({(y * up).sum()}, {x, gate});
  const at::Tensor x64 = x.detach().to(at::kDouble).set_requires_grad(true),
                   gate64 = gate.detach().to(at::kDouble).set_requires_grad(true);
  const auto wanted =
      torch::autograd::grad({(x64 * at::sigmoid(gate64) * up).sum()}, {x64, gate64});
  EXPECT_LT(relative_error(y, x64 * at::sigmoid(gate64)), 1e-6);
  EXPECT_LT(relative_error(got[0], wanted[0]), 1e-6);
  EXPECT_LT(relative_error(got[1], wanted[1]), 1e-6);
}

}  // namespace
}  // namespace tessera::nn::of_experts
