// SPDX-License-Identifier: Apache-2.0
// labels: fast
// The layer norm of each head's channels: values and gradients against libtorch's in float64.
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

TEST(HeadLayerNorm, IsLibtorchsOverTheChannelsOfEachHead) {
  constexpr double kEps = 1e-5, kTolerance = 2e-6;
  const auto random = [](std::initializer_list<std::int64_t> shape, std::uint64_t seed) {
    return at::randn(shape, at::make_generator<at::CPUGeneratorImpl>(seed), at::kFloat);
  };
  const at::Tensor x = random({2, 3, 5, 16}, 1).set_requires_grad(true),
                   dy = random({2, 3, 5, 16}, 2);
  const TestParam weight(random({16}, 3)), bias(random({16}, 4));
  StepContext context(Mode::Train, 1);
  const at::Tensor y = head_layer_norm(x, weight, bias, kEps, context);
  const auto grads = torch::autograd::grad(
      {y}, {x, weight.tensor(), bias.tensor()}, {dy}, std::nullopt, false, true);

  const auto wide = [](const at::Tensor& from) {
    return from.detach().to(at::kDouble).set_requires_grad(true);
  };
  const at::Tensor wide_x = wide(x), wide_weight = wide(weight.tensor()),
                   wide_bias = wide(bias.tensor());
  const at::Tensor expected = at::layer_norm(wide_x, {16}, wide_weight, wide_bias, kEps);
  const auto wanted =
      torch::autograd::grad({expected}, {wide_x, wide_weight, wide_bias}, {dy.to(at::kDouble)});
  EXPECT_LT(relative_error(y, expected), kTolerance);
  EXPECT_LT(relative_error(grads[0], wanted[0]), kTolerance);
  EXPECT_LT(relative_error(weight.grad(), wanted[1]), kTolerance);
  EXPECT_LT(relative_error(bias.grad(), wanted[2]), kTolerance);
}

}  // namespace
}  // namespace tessera::nn
