// SPDX-License-Identifier: Apache-2.0
// Layers on grids of ranks (2d, 2.5d, 3d), compared with the same layers whole.
#pragma once

#include <functional>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "support/placed_param.h"
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "tessera/comm/world.h"
#include "tessera/nn/functional.h"
#include "tessera/nn/tensor_parallel/grid.h"

namespace tessera::nn::on_grids {

// The bound holds for sums of some hundred fp32 products that are split differently.
inline constexpr double kTolerance = 2e-6;
inline constexpr std::int64_t kT = 6, kC = 24;

struct Grid {
  const char* name;
  TensorMode mode;
  int depth, row, col;
};
inline const Grid kTwo = {"2d", TensorMode::TwoD, 1, 2, 2},
                  kNine = {"2d of 9", TensorMode::TwoD, 1, 3, 3},
                  kHalf = {"2.5d", TensorMode::TwoD, 2, 2, 2},
                  kThree = {"3d", TensorMode::ThreeD, 2, 2, 2};
inline const std::vector<Grid> kGrids = {kTwo, kNine, kHalf, kThree};

inline void on_grid(const Grid& grid,
                    const std::function<void(comm::World&, const TensorParallel&)>& fn) {
  comm::run_threads(mesh::Mesh({.tp_depth = grid.depth, .tp_row = grid.row, .tp_col = grid.col}),
                    [&](comm::World& world) {
                      at::set_num_threads(1);
                      const TensorParallel tensor{.world = &world,
                                                  .group = &world.group(mesh::AxisSet::tp()),
                                                  .mode = grid.mode};
                      fn(world, tensor);
                    });
}

inline Batch batch_of(std::int64_t samples) {
  Batch batch;
  batch.sample_ids.resize(static_cast<std::size_t>(samples));
  std::iota(batch.sample_ids.begin(), batch.sample_ids.end(), 11);
  return batch;
}

/// This rank's samples and channels of a value [B, T, C] between layers.
inline at::Tensor own_part(const at::Tensor& x, const TensorParallel& tensor) {
  const grid::Spread spread = grid::stream(tensor.mode);
  const grid::Range samples = grid::own_samples(x.size(0), spread, tensor);
  const mesh::Mesh& mesh = tensor.world->mesh();
  const std::int64_t C = x.size(-1) / mesh.size(spread.channels);
  return x.narrow(0, samples.begin, samples.count)
      .narrow(-1, C * mesh.coordinate(tensor.world->rank(), spread.channels), C);
}

/// Returns what a rank should hold of a whole value: its part if the value is [B, T, C] and passes
/// between layers, all of it otherwise.
inline at::Tensor expected_part(const at::Tensor& x, const TensorParallel& tensor) {
  return x.dim() == 3 && x.size(-1) == kC ? own_part(x, tensor) : x;
}

inline void expect_near(const at::Tensor& got, const at::Tensor& wanted, double tolerance) {
  ASSERT_EQ(got.sizes(), wanted.sizes());
  if (got.numel() == 0) return;
  EXPECT_LT(error_of(got, wanted), tolerance);
}

/// Holds the layers on one rank, in `exact` if given, against every grid.
inline void expect_same(const Layers& layers,
                        const at::Tensor& x,
                        const at::Tensor& dy,
                        const std::vector<Declared>& declared,
                        double tolerance = kTolerance,
                        std::optional<at::ScalarType> exact = std::nullopt) {
  const Batch batch = batch_of(x.size(0));
  const auto fill = [&](StepContext& context) {
    context.batch = &batch;
    context.block_name = "h.0";
  };
  std::vector<Declared> values = declared;
  for (Declared& one : values)
    one.value = one.value.to(exact.value_or(one.value.scalar_type()));
  std::vector<PlacedParam> whole = placed(values, nullptr);
  StepContext alone(Mode::Train, 1);
  fill(alone);
  const Result expected = run(layers, x.to(exact.value_or(x.scalar_type())), dy, whole, alone);
  for (const Grid& grid : kGrids) {
    on_grid(grid, [&](comm::World& world, const TensorParallel& tensor) {
      SCOPED_TRACE(std::string(grid.name) + ", rank " + std::to_string(world.rank()));
      std::vector<PlacedParam> params = placed(declared, &tensor);
      StepContext context(Mode::Train, 1);
      fill(context);
      context.tensor = &tensor;
      const Result got =
          run(layers, own_part(x, tensor), expected_part(dy, tensor), params, context);
      expect_near(got.y, expected_part(expected.y, tensor), tolerance);
      expect_near(got.dx, own_part(expected.dx, tensor), tolerance);
      for (std::size_t p = 0; p < params.size(); ++p) {
        SCOPED_TRACE("parameter " + std::to_string(p));
        expect_near(got.grads[p], params[p].part(expected.grads[p]), tolerance);
      }
    });
  }
}

inline at::Tensor some_labels(std::int64_t samples, std::int64_t vocab) {
  at::Tensor labels =
      at::randint(0, vocab, {samples, kT}, at::make_generator<at::CPUGeneratorImpl>(9), at::kLong);
  labels[0][3].fill_(-100);
  labels[1][kT - 1].fill_(-100);
  return labels;
}

}  // namespace tessera::nn::on_grids
