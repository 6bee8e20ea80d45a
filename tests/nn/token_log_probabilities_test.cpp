// SPDX-License-Identifier: Apache-2.0
// Log-probabilities of given tokens and their gradients against ATen's autograd in float64.
#include "tessera/nn/token_log_probabilities.h"

#include <optional>
#include <string>
#include <vector>

#include "support/test_param.h"
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include "tessera/base/error.h"

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

  const nn::TokenLogProbabilities ours =
      token_log_probabilities(x, weight, &bias, labels_BT, context, softcap, /*squares=*/true);
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

TEST(TokenLogProbabilitiesOf, AnEmptyBatchAreNone) {
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
