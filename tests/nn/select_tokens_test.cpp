// SPDX-License-Identifier: Apache-2.0
// One token of each sample, and the parts of a grid put together.
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "support/placed_param.h"
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/autograd.h>

#include "tessera/base/error.h"
#include "tessera/comm/world.h"
#include "tessera/nn/functional.h"
#include "tessera/nn/tensor_parallel/grid.h"

namespace tessera::nn {
namespace {

// Legend: B batch, T tokens, C channels, L outputs of a small head.
constexpr std::int64_t kB = 5, kT = 4, kC = 12, kL = 3;

Batch batch_of() {
  Batch batch;
  batch.sample_ids = {0, 1, 2, 3, 4};
  return batch;
}
at::Tensor positions_B() {
  return at::tensor(std::vector<std::int64_t>{3, 0, 2, 1, 3}, at::kLong);
}
/// The selected rows by plain indexing.
at::Tensor rows_of(const at::Tensor& x_BTC) {
  return x_BTC.index({at::arange(kB, at::kLong), positions_B()});
}

TEST(SelectTokens, TakesOneTokenOfEachSample) {
  StepContext context(Mode::Train, 1);
  const at::Tensor x = random({kB, kT, kC}, 1).set_requires_grad(true), dy = random({kB, 1, kC}, 2);

  const at::Tensor y = select_tokens(x, positions_B(), context);
  const at::Tensor dx = torch::autograd::grad({y}, {x}, {dy}).front();

  EXPECT_TRUE(at::equal(y.squeeze(1), rows_of(x)));
  EXPECT_TRUE(at::equal(rows_of(dx), dy.squeeze(1)));
  EXPECT_EQ(dx.ne(0).sum().item<std::int64_t>(), dy.numel());
  EXPECT_TRUE(gather_flow(y, context).is_same(y));
}

TEST(SelectTokens, RefusesAnotherNumberOfSamples) {
  const at::Tensor x = random({kB, kT, kC}, 1);
  StepContext context(Mode::Train, 1);
  EXPECT_THROW((void)select_tokens(x, positions_B().narrow(0, 0, 4), context), Error);
}

/// A head that every rank of a grid holds whole, on one token of each sample.
Result run_head(const at::Tensor& x, const at::Tensor& dy, StepContext& context) {
  const Layers head = [](const at::Tensor& in, const std::vector<PlacedParam>& p, StepContext& c) {
    return vocab_logits(gather_flow(select_tokens(in, positions_B(), c), c).squeeze(1), p[0], c);
  };
  std::vector<PlacedParam> params =
      placed({{random({kL, kC}, 3), {LogicalAxis::None, LogicalAxis::None}}}, context.tensor);
  return run(head, x, dy, params, context);
}

TEST(GatherFlow, GivesEveryRankOfAGridAllSamplesAndChannels) {
  const Batch batch = batch_of();
  const at::Tensor x = random({kB, kT, kC}, 1), dy = random({kB, kL}, 2);
  StepContext alone(Mode::Train, 1);
  alone.batch = &batch;
  const Result expected = run_head(x, dy, alone);
  for (const auto& [mode, depth] : std::vector<std::pair<TensorMode, int>>{
           {TensorMode::TwoD, 1}, {TensorMode::TwoD, 2}, {TensorMode::ThreeD, 2}}) {
    comm::run_threads(
        mesh::Mesh({.tp_depth = depth, .tp_row = 2, .tp_col = 2}), [&](comm::World& world) {
          SCOPED_TRACE("rank " + std::to_string(world.rank()) + ", depth " + std::to_string(depth));
          at::set_num_threads(1);
          const TensorParallel tensor{
              .world = &world, .group = &world.group(mesh::AxisSet::tp()), .mode = mode};
          StepContext context(Mode::Train, 1);
          context.batch = &batch;
          context.tensor = &tensor;
          const grid::Spread spread = grid::stream(mode);
          const grid::Range samples = grid::own_samples(kB, spread, tensor);
          const std::int64_t C = kC / world.mesh().size(spread.channels);
          const auto own = [&](const at::Tensor& whole) {
            return whole.narrow(0, samples.begin, samples.count)
                .narrow(2, C * world.mesh().coordinate(world.rank(), spread.channels), C);
          };

          const Result got = run_head(own(x), dy, context);

          // The same products of the same numbers.
          EXPECT_TRUE(at::equal(got.y, expected.y));
          EXPECT_TRUE(at::equal(got.grads[0], expected.grads[0]));
          EXPECT_TRUE(at::equal(got.dx, own(expected.dx)));
        });
  }
}

}  // namespace
}  // namespace tessera::nn
