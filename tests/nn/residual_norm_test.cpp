// SPDX-License-Identifier: Apache-2.0
// A residual stream that takes up a branch, and its norm: values and gradients against the same sum
// and norm apart, and against libtorch's differentiation in float64.
#include <cstdint>
#include <vector>

#include "support/test_param.h"
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include "tessera/nn/functional.h"

namespace tessera::nn {
namespace {

using test::relative_error;
using test::TestParam;

constexpr double kTolerance = 2e-6, kEps = 1e-5;

at::Tensor random(std::uint64_t seed) {
  return at::randn({3, 7, 48}, at::make_generator<at::CPUGeneratorImpl>(seed), at::kFloat);
}
/// The same in fp32 and in bf16.
at::Tensor narrow(std::uint64_t seed) {
  return random(seed).to(at::kBFloat16);
}
at::Tensor leaf(const at::Tensor& x) {
  return x.detach().clone().set_requires_grad(true);
}

/// The results of a residual norm for a stream and a branch, and its gradients.
struct Passes {
  at::Tensor x, normed, dx, dbranch, dweight, dbias;
};
enum class Kind : std::uint8_t { Layer, RootMeanSquare };

Passes pass(Kind kind,
            const at::Tensor& x,
            const at::Tensor& branch,
            const ops::DropoutKey& key,
            bool together,
            bool deferring = false) {
  const TestParam weight(random(1)[0][0]), bias(random(2)[0][0]);
  const at::Tensor from = leaf(x), with = branch.defined() ? leaf(branch) : branch;
  StepContext context(Mode::Train, 1);
  context.set_deferring(deferring);
  Normed out;
  if (together) {
    out = kind == Kind::Layer ? residual_layer_norm(from, with, key, weight, &bias, kEps, context)
                              : residual_rms_norm(from, with, key, weight, kEps, context);
  } else {
    out.x_BTC = with.defined() ? nn::add_dropout(from, with, key) : from;
    out.normed_BTC = kind == Kind::Layer ? layer_norm(out.x_BTC, weight, bias, kEps, context)
                                         : rms_norm(out.x_BTC, weight, kEps, context);
  }
  std::vector<at::Tensor> inputs = {from, weight.tensor()};
  if (kind == Kind::Layer) inputs.push_back(bias.tensor());
  if (with.defined()) inputs.push_back(with);
  const auto grads = torch::autograd::grad({out.x_BTC, out.normed_BTC},
                                           inputs,
                                           {narrow(5).to(x.dtype()), narrow(6).to(x.dtype())},
                                           std::nullopt,
                                           false,
                                           /*allow_unused=*/true);
  EXPECT_EQ(weight.sink().was_written(), !deferring);
  context.run_deferred();
  return {out.x_BTC,
          out.normed_BTC,
          grads[0],
          with.defined() ? grads.back() : at::Tensor(),
          weight.grad(),
          kind == Kind::Layer ? bias.grad() : at::Tensor()};
}

void expect_same_bits(const Passes& one, const Passes& other) {
  EXPECT_TRUE(at::equal(one.x, other.x));
  EXPECT_TRUE(at::equal(one.normed, other.normed));
  EXPECT_TRUE(at::equal(one.dx, other.dx));
  EXPECT_EQ(one.dbranch.defined(), other.dbranch.defined());
  if (one.dbranch.defined()) {
    EXPECT_TRUE(at::equal(one.dbranch, other.dbranch));
  }
  EXPECT_TRUE(at::equal(one.dweight, other.dweight));
  if (one.dbias.defined()) {
    EXPECT_TRUE(at::equal(one.dbias, other.dbias));
  }
}

const ops::DropoutKey kNoDropout = {};
const ops::DropoutKey kDropout = {.p = 0.3, .key = 7, .sample_ids = {4, 5, 6}};

TEST(ResidualNorm, HasTheBitsOfTheSumAndTheNormApart) {
  for (const Kind kind : {Kind::Layer, Kind::RootMeanSquare}) {
    for (const auto& key : {kNoDropout, kDropout}) {
      for (const at::Tensor& branch : {random(4), at::Tensor()}) {
        for (const bool deferring : {false, true}) {
          SCOPED_TRACE(testing::Message()
                       << (kind == Kind::Layer ? "layer" : "rms") << " dropout " << key.p
                       << " branch " << branch.defined() << " deferring " << deferring);
          expect_same_bits(pass(kind, random(3), branch, key, /*together=*/true, deferring),
                           pass(kind, random(3), branch, key, /*together=*/false));
        }
      }
    }
  }
}

TEST(ResidualNorm, MatchesDifferentiationInDouble) {
  const Passes ours = pass(Kind::Layer, random(3), random(4), kNoDropout, /*together=*/true);

  const auto exact = [](const at::Tensor& t) { return leaf(t.to(at::kDouble)); };
  const at::Tensor x = exact(random(3)), branch = exact(random(4)), w = exact(random(1)[0][0]),
                   b = exact(random(2)[0][0]);
  const at::Tensor sum = x + branch, y = at::layer_norm(sum, {48}, w, b, kEps);
  const auto expected = torch::autograd::grad(
      {sum, y}, {x, branch, w, b}, {narrow(5).to(at::kDouble), narrow(6).to(at::kDouble)});
  EXPECT_LT(relative_error(ours.normed, y), kTolerance);
  EXPECT_LT(relative_error(ours.dx, expected[0]), kTolerance);
  EXPECT_LT(relative_error(ours.dbranch, expected[1]), kTolerance);
  EXPECT_LT(relative_error(ours.dweight, expected[2]), kTolerance);
  EXPECT_LT(relative_error(ours.dbias, expected[3]), kTolerance);
}

TEST(ResidualNorm, OfALayerMayLackTheBias) {
  const TestParam weight(random(1)[0][0]);
  const at::Tensor x = leaf(random(3)), branch = leaf(random(4));
  StepContext context(Mode::Train, 1);

  const Normed out = residual_layer_norm(x, branch, {}, weight, nullptr, kEps, context);
  const auto grads = torch::autograd::grad({out.x_BTC, out.normed_BTC},
                                           {x, branch, weight.tensor()},
                                           {narrow(5).to(at::kFloat), narrow(6).to(at::kFloat)},
                                           std::nullopt,
                                           false,
                                           /*allow_unused=*/true);

  const auto exact = [](const at::Tensor& t) { return leaf(t.to(at::kDouble)); };
  const at::Tensor from = exact(random(3)), w = exact(random(1)[0][0]);
  const at::Tensor sum = from + random(4).to(at::kDouble),
                   y = at::layer_norm(sum, {48}, w, {}, kEps);
  const auto expected = torch::autograd::grad(
      {sum, y}, {from, w}, {narrow(5).to(at::kDouble), narrow(6).to(at::kDouble)});
  EXPECT_LT(relative_error(out.normed_BTC, y), kTolerance);
  EXPECT_LT(relative_error(grads[0], expected[0]), kTolerance);
  EXPECT_LT(relative_error(grads[1], expected[0]), kTolerance);
  EXPECT_LT(relative_error(weight.grad(), expected[1]), kTolerance);
}

// Apart, the gradient through the norm is rounded before what comes along the stream is added.
TEST(ResidualNorm, RoundsASumOfGradientsOnce) {
  const at::Tensor x = narrow(3), branch = narrow(4);

  const Passes together = pass(Kind::Layer, x, branch, kNoDropout, true),
               apart = pass(Kind::Layer, x, branch, kNoDropout, false),
               wide =
                   pass(Kind::Layer, (x + branch).to(at::kFloat), at::Tensor(), kNoDropout, true);

  EXPECT_TRUE(at::equal(together.x, apart.x));
  EXPECT_TRUE(at::equal(together.normed, apart.normed));
  const auto error = [&](const Passes& p) {
    return (p.dx.to(at::kFloat) - wide.dx).abs().sum().item<double>();
  };
  EXPECT_LT(error(together), 0.9 * error(apart));
}

TEST(ResidualNorm, PassesOnWhatComesAlongTheStreamWhereItsNormIsNotUsed) {
  const TestParam weight(random(1)[0][0]), bias(random(2)[0][0]);
  const at::Tensor x = leaf(random(3)), branch = leaf(random(4)), dy = random(5);
  StepContext context(Mode::Train, 1);

  const Normed out = residual_layer_norm(x, branch, {}, weight, &bias, kEps, context);
  const auto grads = torch::autograd::grad({out.x_BTC}, {x, branch}, {dy});

  EXPECT_TRUE(at::equal(grads[0], dy));
  EXPECT_TRUE(at::equal(grads[1], dy));
  EXPECT_FALSE(weight.sink().was_written());
}

TEST(ResidualNorm, PassesNothingAlongTheStreamWhereItIsNotUsed) {
  for (const auto& key : {kNoDropout, kDropout}) {
    const TestParam weight(random(1)[0][0]), bias(random(2)[0][0]);
    const at::Tensor x = leaf(random(3)), branch = leaf(random(4)), dy = random(5);
    StepContext context(Mode::Train, 1);

    const Normed out = residual_layer_norm(x, branch, key, weight, &bias, kEps, context);
    const auto grads = torch::autograd::grad({out.normed_BTC}, {x, branch}, {dy});

    const at::Tensor sum = leaf(ops::add_dropout(random(3), random(4), key));
    const at::Tensor expected = torch::autograd::grad(
        {at::layer_norm(sum, {48}, weight.tensor(), bias.tensor(), kEps)}, {sum}, {dy})[0];
    EXPECT_LT(relative_error(grads[0], expected), kTolerance);
    EXPECT_LT(relative_error(grads[1], ops::dropout(expected, key)), kTolerance);
  }
}

TEST(ResidualNorm, LeavesWhicheverOfItsParametersIsFrozen) {
  for (const bool frozen_weight : {false, true}) {
    const TestParam weight(random(1)[0][0], !frozen_weight), bias(random(2)[0][0], frozen_weight);
    const at::Tensor x = leaf(random(3)), branch = leaf(random(4)), dy = random(5);
    StepContext context(Mode::Train, 1);

    const Normed out = residual_layer_norm(x, branch, {}, weight, &bias, kEps, context);
    torch::autograd::grad({out.normed_BTC},
                          {x, branch, frozen_weight ? bias.tensor() : weight.tensor()},
                          {dy},
                          std::nullopt,
                          false,
                          true);

    EXPECT_EQ(weight.sink().was_written(), !frozen_weight);
    EXPECT_EQ(bias.sink().was_written(), frozen_weight);
    if (frozen_weight) {
      EXPECT_LT(relative_error(bias.grad(), dy.sum(at::IntArrayRef{0, 1})), kTolerance);
    }
  }
}

TEST(ResidualNorm, TakesWhatDoesNotLieInRows) {
  const auto turned = [](std::uint64_t seed) {
    return random(seed).transpose(0, 1).contiguous().transpose(0, 1);
  };
  const TestParam weight(random(1)[0][0]), bias(random(2)[0][0]);
  const at::Tensor x = turned(3).set_requires_grad(true),
                   branch = turned(4).set_requires_grad(true);
  StepContext context(Mode::Train, 1);

  const Normed out = residual_layer_norm(x, branch, {}, weight, &bias, kEps, context);
  // One row of gradients for all of the stream.
  const auto grads = torch::autograd::grad({out.x_BTC, out.normed_BTC},
                                           {x, branch, weight.tensor(), bias.tensor()},
                                           {random(5)[0][0].expand({3, 7, 48}), turned(6)},
                                           std::nullopt,
                                           false,
                                           true);

  const TestParam same_weight(random(1)[0][0]), same_bias(random(2)[0][0]);
  const at::Tensor plain = leaf(random(3)), other = leaf(random(4));
  const Normed expected =
      residual_layer_norm(plain, other, {}, same_weight, &same_bias, kEps, context);
  const auto wanted =
      torch::autograd::grad({expected.x_BTC, expected.normed_BTC},
                            {plain, other, same_weight.tensor(), same_bias.tensor()},
                            {random(5)[0][0].expand({3, 7, 48}).contiguous(), random(6)},
                            std::nullopt,
                            false,
                            true);
  EXPECT_TRUE(at::equal(out.x_BTC, expected.x_BTC));
  EXPECT_TRUE(at::equal(out.normed_BTC, expected.normed_BTC));
  EXPECT_TRUE(at::equal(grads[0], wanted[0]));
  EXPECT_TRUE(at::equal(grads[1], wanted[1]));
  EXPECT_TRUE(at::equal(weight.grad(), same_weight.grad()));
  EXPECT_TRUE(at::equal(bias.grad(), same_bias.grad()));
}

TEST(ResidualNorm, IsMadeAgainForTheProductThatFollowsABranch) {
  for (const auto& key : {kNoDropout, kDropout}) {
    const TestParam weight(random(1)[0][0]), bias(random(2)[0][0]),
        matrix(at::randn({5, 48}, at::make_generator<at::CPUGeneratorImpl>(9), at::kFloat));
    const at::Tensor x = leaf(random(3)), branch = leaf(random(4)), dy = at::ones({3, 7, 5});
    StepContext context(Mode::Train, 1);

    const Normed out = residual_layer_norm(x, branch, key, weight, &bias, kEps, context);
    const at::Tensor normed = out.normed_BTC.detach().clone();
    const at::Tensor y = linear(out.normed_BTC, matrix, nullptr, context);
    torch::autograd::grad({y}, {x, matrix.tensor()}, {dy}, std::nullopt, false, true);

    const at::Tensor expected = dy.view({21, 5}).t().mm(normed.view({21, 48}));
    EXPECT_LT(relative_error(matrix.grad(), expected), kTolerance);
  }
}

// The norm is recomputed for the weight gradient of a product; the residual stream, which it
// returns as well, must not be taken for the norm.
TEST(ResidualNorm, IsNotTakenForTheStreamByTheNextLayer) {
  const TestParam weight(random(1)[0][0]), bias(random(2)[0][0]),
      matrix(at::randn({5, 48}, at::make_generator<at::CPUGeneratorImpl>(9), at::kFloat));
  const at::Tensor x = leaf(random(3)), dy = at::ones({3, 7, 5});
  StepContext context(Mode::Train, 1);

  const Normed out = residual_layer_norm(x, {}, {}, weight, &bias, kEps, context);
  const at::Tensor y = linear(out.x_BTC, matrix, nullptr, context);
  torch::autograd::grad({y}, {x, matrix.tensor()}, {dy}, std::nullopt, false, true);

  const at::Tensor expected = dy.view({21, 5}).t().mm(random(3).view({21, 48}));
  EXPECT_LT(relative_error(matrix.grad(), expected), kTolerance);
}

}  // namespace
}  // namespace tessera::nn
