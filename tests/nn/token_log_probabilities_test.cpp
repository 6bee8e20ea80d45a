// SPDX-License-Identifier: Apache-2.0
// Log-probabilities of given tokens and their gradients against ATen's autograd in float64.
#include "tessera/nn/token_log_probabilities.h"

#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "support/test_param.h"
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include "tessera/base/error.h"
#include "tessera/ops/linear.h"

// Legend: B batch, T tokens, C channels, V vocabulary.
namespace tessera::nn {
namespace {

using test::relative_error;
using test::TestParam;

// Sums of some tens of float32 products.
constexpr double kTolerance = 3e-6;
constexpr std::int64_t kB = 3, kT = 5, kC = 16, kV = 37;

at::Tensor labels() {
  return at::tensor(std::vector<std::int64_t>{-100,
                                              3,
                                              36,
                                              -100,
                                              0,  //
                                              -100,
                                              -100,
                                              -100,
                                              -100,
                                              -100,
                                              7,
                                              8,
                                              -100,
                                              9,
                                              10},
                    at::kLong)
      .view({kB, kT});
}

struct Case {
  at::Tensor x = at::randn({kB, kT, kC}), weight = at::randn({kV, kC}), bias = at::randn({kV}),
             incoming = at::randn({kB, kT}, at::kDouble);
};

class TokenLogProbabilities : public ::testing::TestWithParam<double> {};

TEST_P(TokenLogProbabilities, AndTheirGradientsAreThoseOfTheSoftmax) {
  const double softcap = GetParam();
  const Case of;
  const at::Tensor labels_BT = labels(), there_BT = labels_BT.ne(-100);
  const at::Tensor x = of.x.clone().set_requires_grad(true);
  TestParam weight(of.weight), bias(of.bias);
  StepContext context(Mode::Train, 1);

  const nn::TokenLogProbabilities ours = token_log_probabilities(
      x, weight, &bias, labels_BT, context, {.softcap = softcap, .squares = true});
  const at::Tensor dx = torch::autograd::grad({ours.values_BT},
                                              {x, weight.tensor(), bias.tensor()},
                                              {of.incoming},
                                              std::nullopt,
                                              /*create_graph=*/false,
                                              /*allow_unused=*/true)
                            .front();

  const auto leaf = [](const at::Tensor& t) {
    return t.to(at::kDouble).clone().set_requires_grad(true);
  };
  const at::Tensor x64 = leaf(of.x), weight64 = leaf(of.weight), bias64 = leaf(of.bias);
  at::Tensor logits = at::matmul(x64, weight64.t()) + bias64;
  if (softcap != 0.0) logits = softcap * at::tanh(logits / softcap);
  const at::Tensor log_p = at::log_softmax(logits, -1);
  const at::Tensor zero = at::zeros({}, at::kDouble);
  const at::Tensor expected =
      at::where(there_BT, log_p.gather(2, labels_BT.clamp_min(0).unsqueeze(2)).squeeze(2), zero);
  const at::Tensor squares = at::where(there_BT, log_p.detach().mul(2).exp().sum(-1).log(), zero);
  const auto grads = torch::autograd::grad({expected}, {x64, weight64, bias64}, {of.incoming});
  EXPECT_EQ(ours.values_BT.scalar_type(), at::kDouble);
  EXPECT_LT(relative_error(ours.values_BT, expected), kTolerance);
  EXPECT_LT(relative_error(ours.log_sums_of_squares_BT, squares), kTolerance);
  EXPECT_LT(relative_error(dx, grads[0]), kTolerance);
  EXPECT_LT(relative_error(weight.grad(), grads[1]), kTolerance);
  EXPECT_LT(relative_error(bias.grad(), grads[2]), kTolerance);
}

INSTANTIATE_TEST_SUITE_P(SoftCaps, TokenLogProbabilities, ::testing::Values(0.0, 5.0));

// Entropies, a temperature, and a support of the seven most likely tokens and the label.
TEST(TokenLogProbabilitiesOf, ASupportAndEntropiesAreThoseOfTheSoftmax) {
  const Case of;
  const at::Tensor labels_BT = labels(), there_BT = labels_BT.ne(-100);
  const at::Tensor of_entropies = at::randn({kB, kT}, at::kDouble);
  for (const std::int64_t top_k : {0, 7}) {
    const at::Tensor x = of.x.clone().set_requires_grad(true);
    TestParam weight(of.weight);
    StepContext context(Mode::Train, 1);

    const nn::TokenLogProbabilities ours = token_log_probabilities(
        x,
        weight,
        nullptr,
        labels_BT,
        context,
        {.temperature = 0.7, .support = {.top_k = top_k}, .entropies = true});
    const at::Tensor dx = torch::autograd::grad({ours.values_BT, ours.entropies_BT},
                                                {x, weight.tensor()},
                                                {of.incoming, of_entropies},
                                                std::nullopt,
                                                /*create_graph=*/false,
                                                /*allow_unused=*/true)
                              .front();

    const at::Tensor x64 = of.x.to(at::kDouble).clone().set_requires_grad(true),
                     weight64 = of.weight.to(at::kDouble).clone().set_requires_grad(true);
    at::Tensor logits = at::matmul(x64, weight64.t()) / 0.7;
    const at::Tensor index = labels_BT.clamp_min(0).unsqueeze(2);
    if (top_k > 0) {
      const at::Tensor least = std::get<0>(logits.detach().topk(top_k, -1)).select(-1, top_k - 1);
      at::Tensor out = logits.detach().lt(least.unsqueeze(-1));
      out = out.scatter(2, index, false);
      logits = logits.masked_fill(out, -1e300);
    }
    const at::Tensor log_p = at::log_softmax(logits, -1), zero = at::zeros({}, at::kDouble);
    const at::Tensor expected = at::where(there_BT, log_p.gather(2, index).squeeze(2), zero);
    const at::Tensor entropies =
        at::where(there_BT, -(log_p.exp() * log_p.clamp_min(-1e4)).sum(-1), zero);
    const auto grads =
        torch::autograd::grad({expected, entropies}, {x64, weight64}, {of.incoming, of_entropies});
    EXPECT_LT(relative_error(ours.values_BT, expected), kTolerance);
    EXPECT_LT(relative_error(ours.entropies_BT, entropies), kTolerance);
    EXPECT_LT(relative_error(dx, grads[0]), 3 * kTolerance);  // an entropy is a sum of products
    EXPECT_LT(relative_error(weight.grad(), grads[1]), 3 * kTolerance);
  }
}

TEST(NextDistributionsOf, LogitsAreThoseOfTraining) {
  const Case of;
  const at::Tensor labels_BT = labels();
  TestParam weight(of.weight);
  StepContext context(Mode::Eval, 1);
  const at::AutoGradMode no_grad(false);
  const nn::Distribution how{.temperature = 0.7, .support = {.top_k = 9, .top_p = 0.9}};
  nn::Distribution with_entropies = how;
  with_entropies.entropies = true;

  const nn::TokenLogProbabilities trained =
      token_log_probabilities(of.x, weight, nullptr, labels_BT, context, with_entropies);
  const at::Tensor logits = ops::linear(of.x.view({-1, kC}), of.weight, {}, at::kFloat);
  const nn::NextDistributions next(logits.clone(), how);

  for (std::int64_t row = 0; row < kB * kT; ++row) {
    const std::int64_t id = next.draw(row, kV, 5, row);
    EXPECT_TRUE(std::isfinite(next.log_probability(row, id)));
    EXPECT_EQ(id, next.draw(row, kV, 5, row));
    const auto label = labels_BT.view({-1})[row].item<std::int64_t>();
    if (label < 0 || !std::isfinite(next.log_probability(row, label))) continue;
    EXPECT_NEAR(next.log_probability(row, label),
                trained.values_BT.view({-1})[row].item<double>(),
                1e-5);  // products of other numbers of rows
    EXPECT_NEAR(next.entropy(row), trained.entropies_BT.view({-1})[row].item<double>(), 1e-5);
  }
}

TEST(NextDistributionsOf, DrawsFollowTheProbabilities) {
  const at::Tensor logits = at::tensor({0.0F, std::log(3.0F), std::log(4.0F), 5.0F}).unsqueeze(0);
  const nn::NextDistributions next(logits, {});
  std::vector<double> share(3, 0.0);
  constexpr int kDraws = 20000;
  for (int i = 0; i < kDraws; ++i)
    share.at(static_cast<std::size_t>(next.draw(0, 3, 11, i))) += 1.0 / kDraws;
  // Four deviations of a share of 20000 draws.
  EXPECT_NEAR(share[0], 1.0 / 8, 0.015);
  EXPECT_NEAR(share[1], 3.0 / 8, 0.015);
  EXPECT_NEAR(share[2], 4.0 / 8, 0.015);
}

TEST(TokenLogProbabilitiesOf, NoTokenAreZeroAndHaveNoGradient) {
  const Case of;
  const at::Tensor x = of.x.clone().set_requires_grad(true);
  TestParam weight(of.weight);
  StepContext context(Mode::Train, 1);

  const at::Tensor values =
      token_log_probabilities(x, weight, nullptr, at::full({kB, kT}, -100, at::kLong), context)
          .values_BT;
  const at::Tensor dx = torch::autograd::grad({values.sum()},
                                              {x, weight.tensor()},
                                              {},
                                              std::nullopt,
                                              /*create_graph=*/false,
                                              /*allow_unused=*/true)
                            .front();

  EXPECT_EQ(values.abs().max().item<double>(), 0.0);
  EXPECT_EQ(dx.abs().max().item<float>(), 0.0F);
  EXPECT_FALSE(weight.sink().was_written());  // unwritten means zero
}

TEST(TokenLogProbabilitiesOf, OfAnEmptyBatchAreEmpty) {
  const at::Tensor x = at::zeros({0, kT, kC}).set_requires_grad(true);
  TestParam weight(at::randn({kV, kC}));
  StepContext context(Mode::Train, 1);

  const at::Tensor values =
      token_log_probabilities(x, weight, nullptr, at::zeros({0, kT}, at::kLong), context).values_BT;

  EXPECT_EQ(values.sizes(), (std::vector<std::int64_t>{0, kT}));
  EXPECT_EQ(torch::autograd::grad({values.sum()}, {x}).front().numel(), 0);
}

TEST(TokenLogProbabilitiesOf, TokensOutsideOfTheVocabularyAreRefused) {
  const Case of;
  TestParam weight(of.weight);
  StepContext context(Mode::Eval, 1);
  const at::AutoGradMode no_grad(false);
  try {
    token_log_probabilities(of.x, weight, nullptr, at::full({kB, kT}, kV, at::kLong), context);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::Data);
  }
}

}  // namespace
}  // namespace tessera::nn
