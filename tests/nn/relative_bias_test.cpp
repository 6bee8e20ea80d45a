// SPDX-License-Identifier: Apache-2.0
// Learned biases by distance, against the definition element by element.
#include <vector>

#include "support/test_param.h"
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include "tessera/base/error.h"
#include "tessera/comm/world.h"
#include "tessera/nn/functional.h"

namespace tessera::nn {
namespace {

using test::relative_error;
using test::TestParam;

constexpr double kTolerance = 2e-6;  // sums of some ten fp32 numbers
constexpr ops::RelativeBuckets kRule = {.count = 8, .max_distance = 11};
constexpr std::int64_t kHeads = 3, kQueries = 9, kKeys = 14;

at::Tensor random(at::IntArrayRef sizes, std::uint64_t seed) {
  return at::randn(sizes, at::make_generator<at::CPUGeneratorImpl>(seed), at::kFloat);
}

/// table[bucket(s - (offset + t))], differentiable in fp64.
at::Tensor expected_bias(const at::Tensor& table_NH, std::int64_t offset) {
  std::vector<at::Tensor> rows;
  for (std::int64_t t = 0; t < kQueries; ++t) {
    const at::Tensor buckets = ops::relative_buckets(kRule, -(offset + t), kKeys);
    rows.push_back(table_NH.index_select(0, buckets).t());
  }
  return at::stack(rows, 1);
}

TEST(RelativeBias, MatchesDifferentiationInDouble) {
  const TestParam table(random({kRule.count, kHeads}, 1));
  const at::Tensor dy = random({kHeads, kQueries, kKeys}, 2);
  StepContext context(Mode::Train, 1);
  context.position = 5;

  const at::Tensor bias = relative_bias(table, kRule, kQueries, kKeys, context);
  const auto ours =
      torch::autograd::grad({bias}, {table.tensor()}, {dy}, std::nullopt, false, true);

  const at::Tensor exact = table.tensor().detach().to(at::kDouble).set_requires_grad(true);
  const at::Tensor wanted = expected_bias(exact, 5);
  const auto gradient = torch::autograd::grad({wanted}, {exact}, {dy.to(at::kDouble)});
  EXPECT_TRUE(at::equal(bias.detach().to(at::kDouble), wanted.detach()));
  EXPECT_FALSE(ours[0].defined());
  EXPECT_LT(relative_error(table.grad(), gradient[0]), kTolerance);
}

TEST(RelativeBias, PutsItsGradientOffWhenAsked) {
  const TestParam table(random({kRule.count, kHeads}, 1)), at_once(table.tensor());
  const at::Tensor dy = random({kHeads, kQueries, kKeys}, 2);
  StepContext context(Mode::Train, 1);
  const auto backward = [&](const TestParam& param) {
    torch::autograd::grad({relative_bias(param, kRule, kQueries, kKeys, context)},
                          {param.tensor()},
                          {dy},
                          std::nullopt,
                          false,
                          true);
  };
  backward(at_once);
  context.set_deferring(true);

  backward(table);
  EXPECT_FALSE(table.sink().was_written());
  context.run_deferred();

  EXPECT_TRUE(at::equal(table.grad(), at_once.grad()));
}

TEST(RelativeBias, OfANewTokenIsTheLastRowOfTheWhole) {
  const TestParam table(random({kRule.count, kHeads}, 1));
  StepContext context(Mode::Prefill, 1);
  const c10::NoGradGuard no_grad;
  const at::Tensor whole = relative_bias(table, kRule, kKeys, kKeys, context);

  context.set_mode(Mode::Decode);
  context.position = kKeys - 1;
  const at::Tensor row = relative_bias(table, kRule, 1, kKeys, context);

  EXPECT_TRUE(at::equal(row, whole.narrow(1, kKeys - 1, 1)));
}

TEST(RelativeBias, ReadsWeightsInEightBits) {
  Param narrow(TestParam(random({kRule.count, kHeads}, 1)).operator const Param&().shared_info());
  const at::Tensor rows = at::randint(-127, 128, {kRule.count, kHeads}, at::kChar),
                   scales = random({kRule.count}, 3).abs();
  narrow.attach_int8(rows, scales);
  const TestParam wide(rows.to(at::kFloat) * scales.unsqueeze(1));
  StepContext context(Mode::Prefill, 1);
  const c10::NoGradGuard no_grad;

  EXPECT_TRUE(at::equal(relative_bias(narrow, kRule, 4, 4, context),
                        relative_bias(wide, kRule, 4, 4, context)));
}

TEST(DropoutFeatures, OfRanksAreThePartsOfTheWhole) {
  const at::Tensor x = random({2, 5, 12}, 1);
  const ops::DropoutKey key = {.p = 0.4, .key = 77, .sample_ids = {3, 8}};
  const at::Tensor whole = nn::dropout(x, key);

  comm::run_threads(mesh::Mesh({.tp_col = 3}), [&](comm::World& world) {
    const TensorParallel tensor{&world, &world.group(mesh::AxisSet::tp())};
    Params params("block");
    Param* weight =
        params.add("weight", {12, 6}, {LogicalAxis::Ffn, LogicalAxis::Embed}, Init::normal(0.02));
    place(*weight, &tensor, nullptr);
    StepContext context(Mode::Train, 1);
    context.tensor = &tensor;

    const at::Tensor own =
        dropout_features(x.narrow(2, 4 * world.rank(), 4).contiguous(), *weight, key, context);

    EXPECT_TRUE(at::equal(own, whole.narrow(2, 4 * world.rank(), 4)));
  });
}

}  // namespace
}  // namespace tessera::nn
