// SPDX-License-Identifier: Apache-2.0
// Products with adapters that are merged into the weights for inference.
#include "tessera/nn/low_rank.h"

#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include "tessera/nn/functional.h"

namespace tessera::nn {
namespace {

using enum LogicalAxis;

/// A weight [O, H, I] with adapters, all of whose parameters have values.
struct Adapted {
  Params params{"m"};
  Param* weight = nullptr;

  Adapted(const std::vector<LowRankPart>& parts, const Shape& outputs, std::int64_t inputs) {
    Shape shape = outputs;
    shape.push_back(inputs);
    weight = params.add(
        "weight", shape, std::vector<LogicalAxis>(shape.size(), None), Init::normal(0.02));
    add_low_rank(params, *weight, parts);
    for (const auto& param : params.list())
      param->attach(at::randn(param->info().shape, at::kFloat));
  }
  [[nodiscard]] at::Tensor of(const at::Tensor& x) const {
    StepContext context(Mode::Eval, 0);
    return linear(x, *weight, nullptr, context);
  }
};

double distance(const at::Tensor& a, const at::Tensor& b) {
  return ((a - b).abs().max() / b.abs().max()).item<double>();
}

class MergedLowRank : public ::testing::Test {
 protected:
  MergedLowRank() { at::manual_seed(7); }
  const c10::NoGradGuard no_grad_;
};

TEST_F(MergedLowRank, IsTheProductOfTheSum) {
  const Adapted layer(
      {{.module = "m", .begin = {0}, .sizes = {12}, .rank = 3, .scale = 0.5}}, {12}, 8);
  const at::Tensor x = at::randn({5, 8});
  const auto value = [&](std::size_t i) {
    return layer.params.list()[i]->tensor().to(at::kDouble);
  };
  const at::Tensor sum = value(0) + 0.5 * at::matmul(value(2), value(1));
  const at::Tensor apart = layer.of(x);
  {
    const MergedAdapters merged;
    EXPECT_LT(distance(layer.of(x).to(at::kDouble), at::matmul(x.to(at::kDouble), sum.t())), 1e-6);
    EXPECT_LT(distance(layer.of(x), apart), 1e-5);
    EXPECT_FALSE(at::equal(layer.of(x), apart)) << "the products are rounded otherwise";
    const WithoutAdapters base;
    EXPECT_GT(distance(layer.of(x), apart), 0.1);
  }
  EXPECT_TRUE(at::equal(layer.of(x), apart)) << "the weight itself is as it was";
}

// The outputs of the layer are a matrix [3, 4]. Its first and its last row have an adapter each,
// and the row between them has none.
TEST_F(MergedLowRank, PartsAndMagnitudesAreMerged) {
  for (const bool magnitude : {false, true}) {
    const Adapted layer(
        {{.module = "q", .begin = {0, 0}, .sizes = {1, 4}, .rank = 2, .magnitude = magnitude},
         {.module = "v", .begin = {2, 0}, .sizes = {1, 4}, .rank = 2, .magnitude = magnitude}},
        {3, 4},
        8);
    const at::Tensor x = at::randn({5, 8}), apart = layer.of(x);
    const MergedAdapters merged;
    EXPECT_LT(distance(layer.of(x), apart), 1e-5);
    EXPECT_FALSE(at::equal(layer.of(x), apart));
  }
}

// Training computes the adapter's own products, whose gradients it needs.
TEST_F(MergedLowRank, TrainingIsNotMerged) {
  const Adapted layer({{.module = "m", .begin = {0}, .sizes = {12}, .rank = 3}}, {12}, 8);
  const at::Tensor x = at::randn({5, 8});
  StepContext context(Mode::Train, 0);
  const at::Tensor apart = linear(x, *layer.weight, nullptr, context);
  const MergedAdapters merged;
  EXPECT_TRUE(at::equal(linear(x, *layer.weight, nullptr, context), apart));
}

// A matrix is made once.
TEST_F(MergedLowRank, AMatrixIsKept) {
  const Adapted layer({{.module = "m", .begin = {0}, .sizes = {12}, .rank = 3}}, {12}, 8);
  const at::Tensor x = at::randn({5, 8});
  const MergedAdapters merged;
  const at::Tensor first = layer.of(x);
  layer.weight->tensor().zero_();
  EXPECT_TRUE(at::equal(layer.of(x), first));
  const MergedAdapters inner;
  EXPECT_FALSE(at::equal(layer.of(x), first));
}

}  // namespace
}  // namespace tessera::nn
