// SPDX-License-Identifier: Apache-2.0
// Tests by which positions a rank rotates its queries and keys.
#include "tessera/ops/rotary.h"

#include <cmath>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/comm/world.h"
#include "tessera/nn/functional.h"
#include "tessera/nn/tensor_parallel/grid.h"

namespace tessera::nn {
namespace {

using ::testing::ElementsAre;

constexpr std::int64_t kMost = 100;

/// The positions of a table with one pair of channels that turns by a hundredth a token.
std::vector<std::int64_t> positions_of(const at::Tensor& ids_BT,
                                       const StepContext& context,
                                       const at::Tensor& starts_BT = {}) {
  const ops::RotaryTable table = rotary_table(ids_BT, kMost, {0.01}, context, starts_BT);
  std::vector<std::int64_t> out;
  const at::Tensor sine = table.sine_BTP.flatten();
  for (std::int64_t i = 0; i < sine.numel(); ++i)
    out.push_back(std::llround(100.0 * std::asin(sine[i].item<double>())));
  return out;
}

at::Tensor ids(std::int64_t batch, std::int64_t tokens) {
  return at::zeros({batch, tokens}, at::kLong);
}

TEST(RotaryTable, HasOneRowForAllSamplesThatBeginsWhereTheCacheEnds) {
  StepContext context(Mode::Prefill, 1);
  EXPECT_THAT(positions_of(ids(2, 4), context), ElementsAre(0, 1, 2, 3));

  context.set_mode(Mode::Decode);
  context.position = 4;
  EXPECT_THAT(positions_of(ids(2, 1), context), ElementsAre(4));
  context.position = kMost;
  EXPECT_THROW((void)positions_of(ids(2, 1), context), Error);
}

TEST(RotaryTable, CountsFromWhereADocumentBegins) {
  const StepContext context(Mode::Train, 1);
  const at::Tensor starts = at::tensor({0, 0, 2, 2, 0, 1, 1, 1}, at::kLong).view({2, 4});

  EXPECT_THAT(positions_of(ids(2, 4), context, starts), ElementsAre(0, 1, 0, 1, 0, 0, 1, 2));
}

TEST(RotaryTable, IsOfTheTokensThatARankOfARingHas) {
  comm::run_threads(mesh::Mesh({.cp = 2}), [](comm::World& world) {
    const ContextParallel shared{&world, &world.group({mesh::Axis::Cp}), ContextMode::Ring};
    StepContext context(Mode::Train, 1);
    context.context_parallel = &shared;
    const at::Tensor starts = at::tensor({0, 0, 2, 2, 2, 2, 2, 7}, at::kLong).view({1, 8});

    const auto plain = positions_of(ids(2, 4), context),
               apart = positions_of(ids(1, 4), context, starts);

    if (world.rank() == 0) {  // the first and the last quarter
      EXPECT_THAT(plain, ElementsAre(0, 1, 6, 7));
      EXPECT_THAT(apart, ElementsAre(0, 1, 4, 0));
    } else {
      EXPECT_THAT(plain, ElementsAre(2, 3, 4, 5));
      EXPECT_THAT(apart, ElementsAre(0, 1, 2, 3));
    }
  });
}

TEST(RotaryTable, IsOfTheSamplesThatARankOfAGridAttendsTo) {
  comm::run_threads(mesh::Mesh({.tp_depth = 2, .tp_row = 2, .tp_col = 2}), [](comm::World& world) {
    const TensorParallel tensor{
        .world = &world, .group = &world.group(mesh::AxisSet::tp()), .mode = TensorMode::ThreeD};
    StepContext context(Mode::Train, 1);
    context.tensor = &tensor;
    at::Tensor starts = at::zeros({4, 2}, at::kLong);
    starts[1][1] = starts[3][1] = 1;
    const grid::Range own = grid::own_samples(4, grid::inner(tensor.mode), tensor);

    const auto found = positions_of(ids(4, 2), context, starts);

    ASSERT_EQ(own.count, 1);
    EXPECT_THAT(found, ElementsAre(0, own.begin % 2 == 0 ? 1 : 0));
  });
}

}  // namespace
}  // namespace tessera::nn
