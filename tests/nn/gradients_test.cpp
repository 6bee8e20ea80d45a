// SPDX-License-Identifier: Apache-2.0
// Every layer's value and gradients in fp32 against libtorch's own differentiation of the same
// formula in fp64.
#include <functional>
#include <memory>
#include <vector>

#include "support/test_param.h"
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include "tessera/nn/functional.h"

namespace tessera::nn {
namespace {

using enum LogicalAxis;

using test::relative_error;
using test::TestParam;

// Sums of some hundred fp32 products.
constexpr double kTolerance = 2e-6;

at::Tensor random(at::IntArrayRef sizes, std::uint64_t seed) {
  return at::randn(sizes, at::make_generator<at::CPUGeneratorImpl>(seed), at::kFloat);
}

std::vector<at::Tensor> gradients(const at::Tensor& y,
                                  const std::vector<at::Tensor>& inputs,
                                  const at::Tensor& dy) {
  return torch::autograd::grad({y}, inputs, {dy.to(y.scalar_type())}, std::nullopt, false, true);
}

at::Tensor leaf(const at::Tensor& x) {
  return x.detach().clone().set_requires_grad(true);
}
at::Tensor exact(const at::Tensor& x) {
  return x.detach().to(at::kDouble).set_requires_grad(true);
}

StepContext train_context() {
  return {Mode::Train, 1};
}

TEST(Linear, MatchesDifferentiationInDouble) {
  const TestParam weight(random({3, 4, 8, 32}, 1)), bias(random({3, 4, 8}, 2));
  const at::Tensor x = leaf(random({2, 5, 32}, 3)), dy = random({2, 5, 96}, 4);
  StepContext context = train_context();

  const at::Tensor y = linear(x, weight, &bias, context);
  const auto ours = gradients(y, {x, weight.tensor(), bias.tensor()}, dy);

  const at::Tensor rx = exact(x), rw = exact(weight.tensor()), rb = exact(bias.tensor());
  const at::Tensor ry = at::linear(rx, rw.view({96, 32}), rb.view({96}));
  const auto expected = gradients(ry, {rx, rw, rb}, dy);
  EXPECT_LT(relative_error(y, ry), kTolerance);
  EXPECT_LT(relative_error(ours[0], expected[0]), kTolerance);
  EXPECT_FALSE(ours[1].defined());
  EXPECT_FALSE(ours[2].defined());
  EXPECT_TRUE(weight.sink().was_written());
  EXPECT_LT(relative_error(weight.grad(), expected[1]), kTolerance);
  EXPECT_LT(relative_error(bias.grad(), expected[2]), kTolerance);
}

TEST(Linear, AddsUpWhenItsWeightIsUsedTwice) {
  const TestParam weight(random({16, 16}, 1));
  const at::Tensor x = leaf(random({4, 16}, 3)), dy = random({4, 16}, 4);
  StepContext context = train_context();

  const at::Tensor y = linear(linear(x, weight, nullptr, context), weight, nullptr, context);
  gradients(y, {x, weight.tensor()}, dy);

  const at::Tensor rx = exact(x), rw = exact(weight.tensor());
  const auto expected = gradients(at::linear(at::linear(rx, rw), rw), {rx, rw}, dy);
  EXPECT_LT(relative_error(weight.grad(), expected[1]), kTolerance);
}

TEST(Linear, LeavesAFrozenWeightAlone) {
  const TestParam weight(random({16, 16}, 1), /*trainable=*/false);
  const at::Tensor x = leaf(random({4, 16}, 3));
  StepContext context = train_context();

  const auto dx = gradients(linear(x, weight, nullptr, context), {x}, at::ones({4, 16}));

  EXPECT_TRUE(dx[0].defined());
  EXPECT_FALSE(weight.sink().was_written());
}

TEST(Linear, PutsItsWeightGradientOffWhenAsked) {
  const TestParam weight(random({16, 16}, 1)), at_once(weight.tensor());
  const at::Tensor x = leaf(random({4, 16}, 3)), dy = random({4, 16}, 4);
  StepContext context = train_context();
  gradients(linear(x, at_once, nullptr, context), {x, at_once.tensor()}, dy);
  context.set_deferring(true);

  gradients(linear(x, weight, nullptr, context), {x, weight.tensor()}, dy);
  EXPECT_FALSE(weight.sink().was_written());
  context.run_deferred();

  EXPECT_TRUE(weight.sink().was_written());
  EXPECT_TRUE(at::equal(weight.grad(), at_once.grad()));
}

// A layer that computes, from x, the input of a linear layer of 16 channels.
using Made = std::function<at::Tensor(const at::Tensor& x, StepContext& context)>;

/// Gradients of x and of the weight through a linear layer on `made`, whose result is kept or
/// recomputed.
std::vector<at::Tensor> through_linear(const Made& made, bool kept, bool put_off = false) {
  const TestParam weight(random({24, 16}, 1));
  const at::Tensor x = leaf(random({4, 16}, 3)), dy = random({4, 24}, 4);
  StepContext context = train_context();
  context.set_deferring(put_off);
  at::Tensor input = made(x, context);
  // A view has another node than the layer.
  if (kept) input = input.view({4, 16});
  const at::Tensor y = linear(input, weight, nullptr, context);
  // The caller's, and the layer's where it keeps it.
  EXPECT_EQ(input.use_count(), kept ? 2U : 1U);
  const at::Tensor dx = gradients(y, {x, weight.tensor()}, dy)[0];
  context.run_deferred();
  return {dx, weight.grad()};
}

TEST(Linear, KeepsNoInputThatTheLayerBeforeMakesAgainWithTheSameBits) {
  const TestParam scale(random({16}, 5)), shift(random({16}, 6));
  const Made norm = [&](const at::Tensor& x, StepContext& context) {
    return layer_norm(x, scale, shift, 1e-5, context);
  };
  const Made rms = [&](const at::Tensor& x, StepContext& context) {
    return rms_norm(x, scale, 1e-5, context);
  };
  const Made gelu = [](const at::Tensor& x, StepContext&) {
    return nn::activate(x, ops::Activation::GeluTanh);
  };
  const Made gates = [](const at::Tensor& x, StepContext&) {
    return nn::gated(at::cat({x, x.flip(1)}, 1), ops::Activation::Silu);
  };
  for (const Made& made : {norm, rms, gelu, gates}) {
    const auto kept = through_linear(made, /*kept=*/true);
    for (const bool put_off : {false, true}) {
      const auto again = through_linear(made, /*kept=*/false, put_off);
      EXPECT_TRUE(at::equal(again[0], kept[0]));
      EXPECT_TRUE(at::equal(again[1], kept[1]));
    }
  }
}

TEST(Linear, KeepsNoInputOfAFrozenWeight) {
  const TestParam weight(random({16, 16}, 1), /*trainable=*/false);
  const at::Tensor x = leaf(random({4, 16}, 3)) * 2;
  StepContext context = train_context();

  const at::Tensor y = linear(x, weight, nullptr, context);

  EXPECT_TRUE(y.requires_grad());
  EXPECT_EQ(x.use_count(), 1U);
}

TEST(Linear, BuildsNoGraphWithoutGradients) {
  const TestParam weight(random({16, 16}, 1));
  const c10::NoGradGuard no_grad;
  StepContext context(Mode::Eval, 1);

  const at::Tensor y = linear(random({4, 16}, 3), weight, nullptr, context);

  EXPECT_FALSE(y.requires_grad());
}

TEST(LayerNorm, MatchesDifferentiationInDouble) {
  const TestParam weight(random({48}, 1)), bias(random({48}, 2));
  const at::Tensor x = leaf(random({3, 7, 48}, 3) * 2 + 1), dy = random({3, 7, 48}, 4);
  StepContext context = train_context();

  const at::Tensor y = layer_norm(x, weight, bias, 1e-5, context);
  const auto ours = gradients(y, {x, weight.tensor(), bias.tensor()}, dy);

  const at::Tensor rx = exact(x), rw = exact(weight.tensor()), rb = exact(bias.tensor());
  const at::Tensor ry = at::layer_norm(rx, {48}, rw, rb, 1e-5);
  const auto expected = gradients(ry, {rx, rw, rb}, dy);
  EXPECT_LT(relative_error(y, ry), kTolerance);
  EXPECT_LT(relative_error(ours[0], expected[0]), kTolerance);
  EXPECT_LT(relative_error(weight.grad(), expected[1]), kTolerance);
  EXPECT_LT(relative_error(bias.grad(), expected[2]), kTolerance);
}

at::Tensor plain_rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return x * at::rsqrt(at::mean(x * x, {-1}, /*keepdim=*/true) + eps) * weight;
}

TEST(RmsNorm, MatchesDifferentiationInDouble) {
  const TestParam weight(random({48}, 1));
  const at::Tensor x = leaf(random({3, 7, 48}, 3) * 2 + 1), dy = random({3, 7, 48}, 4);
  StepContext context = train_context();

  const at::Tensor y = rms_norm(x, weight, 1e-5, context);
  const auto ours = gradients(y, {x, weight.tensor()}, dy);

  const at::Tensor rx = exact(x), rw = exact(weight.tensor()), ry = plain_rms_norm(rx, rw, 1e-5);
  const auto expected = gradients(ry, {rx, rw}, dy);
  EXPECT_LT(relative_error(y, ry), kTolerance);
  EXPECT_LT(relative_error(ours[0], expected[0]), kTolerance);
  EXPECT_FALSE(ours[1].defined());
  EXPECT_LT(relative_error(weight.grad(), expected[1]), kTolerance);
}

TEST(RmsNorm, PutsItsWeightGradientOffWhenAsked) {
  const TestParam weight(random({48}, 1)), at_once(weight.tensor());
  const at::Tensor x = leaf(random({6, 48}, 3)), dy = random({6, 48}, 4);
  StepContext context = train_context();
  const auto now = gradients(rms_norm(x, at_once, 1e-5, context), {x, at_once.tensor()}, dy);
  context.set_deferring(true);

  const auto later = gradients(rms_norm(x, weight, 1e-5, context), {x, weight.tensor()}, dy);
  EXPECT_FALSE(weight.sink().was_written());
  context.run_deferred();

  EXPECT_TRUE(at::equal(later[0], now[0]));
  EXPECT_TRUE(weight.sink().was_written());
  EXPECT_TRUE(at::equal(weight.grad(), at_once.grad()));
}

TEST(RmsNorm, LeavesAFrozenWeightAlone) {
  const TestParam weight(random({48}, 1), /*trainable=*/false);
  const at::Tensor x = leaf(random({6, 48}, 3));
  StepContext context = train_context();

  const auto dx = gradients(rms_norm(x, weight, 1e-5, context), {x}, at::ones({6, 48}));

  EXPECT_TRUE(dx[0].defined());
  EXPECT_FALSE(weight.sink().was_written());
}

TEST(Embedding, MatchesDifferentiationInDouble) {
  const TestParam table(random({11, 8}, 1));
  const at::Tensor ids = at::tensor({0, 3, 3, 10, 3, 1}, at::kLong).view({2, 3}),
                   dy = random({2, 3, 8}, 4);
  StepContext context = train_context();

  const at::Tensor y = embedding(ids, table, context);
  gradients(y, {table.tensor()}, dy);

  const at::Tensor rt = exact(table.tensor());
  const auto expected = gradients(at::embedding(rt, ids), {rt}, dy);
  EXPECT_TRUE(at::equal(y.detach(), at::embedding(table.tensor(), ids).detach()));
  EXPECT_LT(relative_error(table.grad(), expected[0]), kTolerance);
}

TEST(Activate, MatchesDifferentiationInDouble) {
  const std::vector<std::pair<ops::Activation, std::function<at::Tensor(const at::Tensor&)>>>
      cases = {{ops::Activation::GeluTanh, [](const at::Tensor& x) { return at::gelu(x, "tanh"); }},
               {ops::Activation::Gelu, [](const at::Tensor& x) { return at::gelu(x); }},
               {ops::Activation::Relu, [](const at::Tensor& x) { return at::relu(x); }},
               {ops::Activation::Silu, [](const at::Tensor& x) { return at::silu(x); }}};
  for (const auto& [activation, reference] : cases) {
    const at::Tensor x = leaf(random({5, 100}, 1) * 3), dy = random({5, 100}, 2);

    const at::Tensor y = nn::activate(x, activation);
    const auto ours = gradients(y, {x}, dy);

    const at::Tensor rx = exact(x), ry = reference(rx);
    EXPECT_LT(relative_error(y, ry), kTolerance);
    EXPECT_LT(relative_error(ours[0], gradients(ry, {rx}, dy)[0]), kTolerance);
  }
}

TEST(Gated, MatchesDifferentiationInDouble) {
  const std::vector<std::pair<ops::Activation, std::function<at::Tensor(const at::Tensor&)>>>
      cases = {{ops::Activation::GeluTanh, [](const at::Tensor& x) { return at::gelu(x, "tanh"); }},
               {ops::Activation::Gelu, [](const at::Tensor& x) { return at::gelu(x); }},
               {ops::Activation::Relu, [](const at::Tensor& x) { return at::relu(x); }},
               {ops::Activation::Silu, [](const at::Tensor& x) { return at::silu(x); }}};
  for (const auto& [activation, reference] : cases) {
    const at::Tensor x = leaf(random({5, 3, 44}, 1) * 3), dy = random({5, 3, 22}, 2);

    const at::Tensor y = nn::gated(x, activation);
    const auto ours = gradients(y, {x}, dy);

    const at::Tensor rx = exact(x), ry = reference(rx.narrow(2, 0, 22)) * rx.narrow(2, 22, 22);
    EXPECT_LT(relative_error(y, ry), kTolerance);
    EXPECT_LT(relative_error(ours[0], gradients(ry, {rx}, dy)[0]), kTolerance);
  }
}

/// Rotary embeddings as Hugging Face's LLaMA computes them: x cos + rotate_half(x) sin.
at::Tensor plain_rotary(const at::Tensor& x_BHTK, const at::Tensor& positions_BT, double base) {
  const std::int64_t K = x_BHTK.size(3);
  const at::Tensor powers = at::arange(0, K, 2, at::kDouble) / static_cast<double>(K);
  const at::Tensor half = positions_BT.to(at::kDouble).unsqueeze(2) * at::pow(base, -powers);
  const at::Tensor angles = at::cat({half, half}, 2).unsqueeze(1);
  const at::Tensor first = x_BHTK.narrow(3, 0, K / 2), second = x_BHTK.narrow(3, K / 2, K / 2);
  return x_BHTK * at::cos(angles) + at::cat({-second, first}, 3) * at::sin(angles);
}

TEST(Rotary, MatchesDifferentiationInDouble) {
  const at::Tensor positions = at::arange(18, at::kLong).view({2, 9}) * 7;
  const at::Tensor x = leaf(random({2, 3, 9, 16}, 1)), dy = random({2, 3, 9, 16}, 2);
  const ops::RotaryTable table = ops::rotary_table(positions, ops::rotary_frequencies(16, 10000.0));

  const at::Tensor y = nn::rotary(x, table);
  const auto ours = gradients(y, {x}, dy);

  const at::Tensor rx = exact(x), ry = plain_rotary(rx, positions, 10000.0);
  EXPECT_LT(relative_error(y, ry), kTolerance);
  EXPECT_LT(relative_error(ours[0], gradients(ry, {rx}, dy)[0]), kTolerance);
}

TEST(Dropout, PassesGradientsWhereItPassedValues) {
  const ops::DropoutKey key{.p = 0.3, .key = 5, .sample_ids = {4, 9}};
  const at::Tensor x = leaf(at::ones({2, 50, 8}));

  const at::Tensor y = nn::dropout(x, key);
  const auto dx = gradients(y, {x}, at::ones_like(x));

  EXPECT_TRUE(at::equal(dx[0], y.detach()));
  EXPECT_TRUE((y == 0).any().item<bool>());
}

TEST(Dropout, AddedToAStreamPassesGradientsToBoth) {
  const ops::DropoutKey key{.p = 0.3, .key = 5, .sample_ids = {4, 9}};
  const at::Tensor x = leaf(random({2, 50, 8}, 1)), branch = leaf(random({2, 50, 8}, 2)),
                   dy = random({2, 50, 8}, 3);

  const at::Tensor y = nn::add_dropout(x, branch, key);
  const auto grads = gradients(y, {x, branch}, dy);

  EXPECT_TRUE(at::equal(grads[0], dy));
  EXPECT_TRUE(at::equal(grads[1], ops::dropout(dy, key)));
  EXPECT_LT(relative_error(y, exact(x) + ops::dropout(branch.detach(), key)), kTolerance);
}

TEST(Heads, SplitAndMergeAreInverse) {
  const at::Tensor x = leaf(random({2, 5, 3 * 4 * 8}, 1)), dy = random({2, 5, 32}, 2);

  const auto heads = split_heads(x, 3, 4);
  const at::Tensor y = merge_heads(heads[1]);
  const auto dx = gradients(y, {x}, dy);

  EXPECT_EQ(heads[0].sizes(), (std::vector<std::int64_t>{2, 4, 5, 8}));
  EXPECT_TRUE(at::equal(y.detach(), x.detach().narrow(2, 32, 32)));
  EXPECT_TRUE(at::equal(dx[0], at::constant_pad_nd(dy, {32, 32})));
}

TEST(Heads, OfQueriesStandBeforeTheKeysAndValuesThatTheyShare) {
  ParamInfo info;
  info.shape = {2, 5, 8, 4};  // two groups of three queries
  info.axes = {KvHeads, None, None, Embed};
  const Param weight(std::make_shared<const ParamInfo>(info));
  const at::Tensor x = leaf(random({2, 7, 2 * 5 * 8}, 1));
  const at::Tensor dq = random({2, 6, 7, 8}, 2), dk = random({2, 2, 7, 8}, 3),
                   dv = random({2, 2, 7, 8}, 4);

  const Qkv got = split_qkv(x, weight);
  const auto dx = torch::autograd::grad({got.q_BHTK, got.k_BGTK, got.v_BGTK}, {x}, {dq, dk, dv});

  const auto rows = [](const at::Tensor& of, std::int64_t group, std::int64_t row) {
    return of.detach().view({2, 7, 2, 5, 8}).select(2, group).select(2, row);
  };
  for (const std::int64_t group : {0, 1}) {
    for (const std::int64_t query : {0, 1, 2}) {
      EXPECT_TRUE(at::equal(got.q_BHTK.select(1, 3 * group + query), rows(x, group, query)));
      EXPECT_TRUE(at::equal(dq.select(1, 3 * group + query), rows(dx[0], group, query)));
    }
    EXPECT_TRUE(at::equal(got.k_BGTK.select(1, group), rows(x, group, 3)));
    EXPECT_TRUE(at::equal(got.v_BGTK.select(1, group), rows(x, group, 4)));
    EXPECT_TRUE(at::equal(dk.select(1, group), rows(dx[0], group, 3)));
    EXPECT_TRUE(at::equal(dv.select(1, group), rows(dx[0], group, 4)));
  }
}

class NoBlock final : public Block {
  void declare(Params&) override {}
  Outcome forward(Flow, const Batch&, StepContext&) override { return {}; }
};

void expect_attention(const at::Tensor& mask_BS) {
  const std::vector<std::int64_t> sizes = {2, 3, 9, 8};
  const at::Tensor q = leaf(random(sizes, 1)), k = leaf(random(sizes, 2)),
                   v = leaf(random(sizes, 3));
  const at::Tensor dy = random(sizes, 4);
  StepContext context = train_context();
  NoBlock block;

  const at::Tensor y = attention(q, k, v, {.mask_BS = mask_BS}, block, context);
  const auto ours = gradients(y, {q, k, v}, dy);

  const at::Tensor rq = exact(q), rk = exact(k), rv = exact(v);
  at::Tensor scores = at::matmul(rq, rk.transpose(2, 3)) / std::sqrt(8.0);
  scores = scores.masked_fill(at::ones({9, 9}, at::kBool).triu(1),
                              -std::numeric_limits<double>::infinity());
  if (mask_BS.defined())
    scores = scores + (1.0 - mask_BS.to(at::kDouble)).view({2, 1, 1, 9}) * -10000.0;
  const at::Tensor ry = at::matmul(at::softmax(scores, -1), rv);
  const auto expected = gradients(ry, {rq, rk, rv}, dy);
  EXPECT_LT(relative_error(y, ry), kTolerance);
  for (std::size_t i = 0; i < 3; ++i)
    EXPECT_LT(relative_error(ours[i], expected[i]), kTolerance);
}

TEST(Attention, MatchesDifferentiationInDouble) {
  expect_attention({});
}

TEST(Attention, MatchesDifferentiationInDoubleWithAMask) {
  at::Tensor mask = at::ones({2, 9}, at::kLong);
  mask[1].narrow(0, 6, 3).zero_();
  expect_attention(mask);
}

void expect_vocab_loss(double smoothing) {
  const TestParam weight(random({50, 16}, 1));
  const at::Tensor x = leaf(random({2, 6, 16}, 2));
  at::Tensor labels = at::arange(12, at::kLong).view({2, 6}) * 4;
  labels[1][5] = -100;
  StepContext context = train_context();
  context.want_logits = true;

  const VocabLoss loss = vocab_loss(x, weight, labels, smoothing, context);
  const at::Tensor factor = at::full({}, 0.25, at::kDouble);
  const auto ours = gradients(loss.sum, {x, weight.tensor()}, factor);

  const at::Tensor rx = exact(x), rw = exact(weight.tensor()), logits = at::linear(rx, rw);
  const at::Tensor rsum = at::cross_entropy_loss(
      logits.view({12, 50}), labels.view({-1}), {}, at::Reduction::Sum, -100, smoothing);
  const auto expected = gradients(rsum, {rx, rw}, factor);
  EXPECT_EQ(loss.sum.scalar_type(), at::kDouble);
  EXPECT_LT(relative_error(loss.sum, rsum), kTolerance);
  EXPECT_LT(relative_error(loss.logits, logits), kTolerance);
  EXPECT_FALSE(loss.logits.requires_grad());
  EXPECT_LT(relative_error(ours[0], expected[0]), kTolerance);
  EXPECT_LT(relative_error(weight.grad(), expected[1]), kTolerance);
}

TEST(VocabLoss, MatchesDifferentiationInDouble) {
  expect_vocab_loss(0.0);
}
TEST(VocabLoss, MatchesDifferentiationInDoubleWithLabelSmoothing) {
  expect_vocab_loss(0.1);
}

/// Working in 16 bits: what flows is in that dtype, weight gradients are fp32.
class WorkingDtypes : public testing::TestWithParam<at::ScalarType> {
 protected:
  /// The error of one rounding: bf16 has 8 bits, fp16 has 11.
  double epsilon() const { return GetParam() == at::kHalf ? 0x1p-11 : 0x1p-8; }
  at::Tensor value(at::IntArrayRef sizes, std::uint64_t seed) const {
    return random(sizes, seed).to(GetParam());
  }
};

TEST_P(WorkingDtypes, VocabLossHasFp32LogitsAndFp32Gradients) {
  const TestParam weight(value({50, 16}, 1));
  const at::Tensor x = leaf(value({2, 6, 16}, 2));
  const at::Tensor labels = at::arange(12, at::kLong).view({2, 6});
  StepContext context = train_context();

  const VocabLoss loss = vocab_loss(x, weight, labels, 0.0, context);
  const auto ours = gradients(loss.sum, {x, weight.tensor()}, at::ones({}, at::kDouble));

  const at::Tensor rx = exact(x), rw = exact(weight.tensor());
  const at::Tensor rsum = at::cross_entropy_loss(
      at::linear(rx, rw).view({12, 50}), labels.view({-1}), {}, at::Reduction::Sum);
  const auto expected = gradients(rsum, {rx, rw}, at::ones({}, at::kDouble));
  EXPECT_EQ(ours[0].scalar_type(), GetParam());
  EXPECT_LT(relative_error(loss.sum, rsum), 1e-5);  // logits are fp32
  // The logits' gradient is rounded, dx once more.
  EXPECT_LT(relative_error(ours[0], expected[0]), 2.5 * epsilon());
  EXPECT_LT(relative_error(weight.grad(), expected[1]), 2.5 * epsilon());
}

TEST_P(WorkingDtypes, ALayerOfEveryKindFollowsDifferentiationInDouble) {
  const TestParam table(value({11, 32}, 1)), norm(value({32}, 2)), shift(value({32}, 3)),
      weight(value({96, 32}, 4) * 0.2), bias(value({96}, 5));
  const at::Tensor ids = at::tensor({0, 3, 3, 10, 3, 1}, at::kLong).view({2, 3});
  const at::Tensor dy = value({2, 3, 32}, 6);
  StepContext context = train_context();
  NoBlock block;

  const at::Tensor x = embedding(ids, table, context);
  const at::Tensor n = layer_norm(x, norm, shift, 1e-5, context);
  const auto heads = split_heads(linear(n, weight, &bias, context), 3, 4);
  const at::Tensor mixed = attention(heads[0], heads[1], heads[2], {}, block, context);
  const at::Tensor y = nn::activate(merge_heads(mixed), ops::Activation::GeluTanh);
  gradients(y, {table.tensor(), norm.tensor(), shift.tensor(), weight.tensor(), bias.tensor()}, dy);

  const at::Tensor rt = exact(table.tensor()), rn = exact(norm.tensor()),
                   rs = exact(shift.tensor()), rw = exact(weight.tensor()),
                   rb = exact(bias.tensor());
  const at::Tensor flat = at::layer_norm(at::embedding(rt, ids), {32}, rn, rs, 1e-5);
  const auto parts = at::linear(flat, rw, rb).view({2, 3, 3, 4, 8}).permute({2, 0, 3, 1, 4});
  const at::Tensor ry =
      at::gelu(at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, true)
                   .transpose(1, 2)
                   .reshape({2, 3, 32}),
               "tanh");
  const auto expected = gradients(ry, {rt, rn, rs, rw, rb}, dy);
  EXPECT_EQ(y.scalar_type(), GetParam());
  // About five roundings in the forward pass and as many in the backward pass.
  const double tolerance = 10 * epsilon();
  EXPECT_LT(relative_error(y, ry), tolerance);
  EXPECT_LT(relative_error(table.grad(), expected[0]), tolerance);
  EXPECT_LT(relative_error(norm.grad(), expected[1]), tolerance);
  EXPECT_LT(relative_error(shift.grad(), expected[2]), tolerance);
  EXPECT_LT(relative_error(weight.grad(), expected[3]), tolerance);
  EXPECT_LT(relative_error(bias.grad(), expected[4]), tolerance);
}

TEST_P(WorkingDtypes, LayersOfALlamaFollowDifferentiationInDouble) {
  const TestParam norm(value({32}, 2)), weight(value({96, 32}, 4) * 0.2),
      gate(value({2, 24, 32}, 5) * 0.2);
  const at::Tensor x = leaf(value({2, 3, 32}, 1)), dy = value({2, 3, 24}, 6);
  const at::Tensor positions = at::arange(3, at::kLong).view({1, 3});
  const ops::RotaryTable table = ops::rotary_table(positions, ops::rotary_frequencies(8, 10000.0));
  StepContext context = train_context();
  NoBlock block;

  const at::Tensor n = rms_norm(x, norm, 1e-5, context);
  const auto heads = split_heads(linear(n, weight, nullptr, context), 3, 4);
  const at::Tensor mixed = attention(
      nn::rotary(heads[0], table), nn::rotary(heads[1], table), heads[2], {}, block, context);
  const at::Tensor y =
      nn::gated(linear(merge_heads(mixed), gate, nullptr, context), ops::Activation::Silu);
  const auto ours = gradients(y, {x, norm.tensor(), weight.tensor(), gate.tensor()}, dy);

  const at::Tensor rx = exact(x), rn = exact(norm.tensor()), rw = exact(weight.tensor()),
                   rg = exact(gate.tensor());
  const auto parts =
      at::linear(plain_rms_norm(rx, rn, 1e-5), rw).view({2, 3, 3, 4, 8}).permute({2, 0, 3, 1, 4});
  const at::Tensor rm = at::scaled_dot_product_attention(plain_rotary(parts[0], positions, 10000.0),
                                                         plain_rotary(parts[1], positions, 10000.0),
                                                         parts[2],
                                                         {},
                                                         0.0,
                                                         true)
                            .transpose(1, 2)
                            .reshape({2, 3, 32});
  const auto halves = at::linear(rm, rg.view({48, 32})).chunk(2, 2);
  const at::Tensor ry = at::silu(halves[0]) * halves[1];
  const auto expected = gradients(ry, {rx, rn, rw, rg}, dy);
  EXPECT_EQ(y.scalar_type(), GetParam());
  // About seven roundings in the forward pass and as many in the backward pass.
  const double tolerance = 14 * epsilon();
  EXPECT_LT(relative_error(y, ry), tolerance);
  EXPECT_LT(relative_error(ours[0], expected[0]), tolerance);
  EXPECT_LT(relative_error(norm.grad(), expected[1]), tolerance);
  EXPECT_LT(relative_error(weight.grad(), expected[2]), tolerance);
  EXPECT_LT(relative_error(gate.grad(), expected[3]), tolerance);
}

INSTANTIATE_TEST_SUITE_P(Dtypes, WorkingDtypes, testing::Values(at::kBFloat16, at::kHalf));

struct HeadGradients {
  at::Tensor dx, dweight;
};

HeadGradients fp16_head_gradients(double factor) {
  const TestParam weight(random({50, 16}, 1).to(at::kHalf));
  const at::Tensor x = leaf(random({2, 6, 16}, 2).to(at::kHalf));
  StepContext context = train_context();
  const VocabLoss loss =
      vocab_loss(x, weight, at::arange(12, at::kLong).view({2, 6}), 0.0, context);
  const auto dx = gradients(loss.sum, {x, weight.tensor()}, at::full({}, factor, at::kDouble));
  return {dx[0], weight.grad()};
}

TEST(Fp16Loss, ScaledKeepsGradientsThatVanishWithoutIt) {
  const HeadGradients one = fp16_head_gradients(1.0);
  const HeadGradients tiny = fp16_head_gradients(0x1p-30);
  const HeadGradients scaled = fp16_head_gradients(0x1p-30 * 0x1p24);

  EXPECT_TRUE((tiny.dx == 0).all().item<bool>());
  // Scaling by a power of two changes only the smallest values, which become subnormal; that may
  // change the rounding of a sum over them by one unit in the last place.
  EXPECT_LT(relative_error(scaled.dx * 64, one.dx), 3 * 0x1p-11);
  EXPECT_LT(relative_error(scaled.dweight * 64, one.dweight), 3 * 0x1p-11);
}

TEST(Fp16Loss, ScaledTooFarShowsInEveryGradient) {
  const HeadGradients broken = fp16_head_gradients(0x1p20);

  EXPECT_FALSE(at::isfinite(broken.dx).all().item<bool>());
  EXPECT_FALSE(at::isfinite(broken.dweight).all().item<bool>());
}

}  // namespace
}  // namespace tessera::nn
