// SPDX-License-Identifier: Apache-2.0
#include "tessera/nn/tensor_parallel/two_d.h"

#include <algorithm>

#include "tessera/comm/world.h"
#include "tessera/mesh/shard_spec.h"
#include "tessera/nn/autograd.h"
#include "tessera/ops/linear.h"

namespace tessera::nn::two_d {
namespace {

using namespace detail;
using grid::along;
using grid::broadcast;
using grid::reduce;

/// Columns of a matrix are split over the rows of the grid, rows over its columns.
constexpr mesh::Axis kColumns = mesh::Axis::TpRow, kRows = mesh::Axis::TpCol;

/// [outputs, inputs] of a block.
struct Size {
  std::int64_t outputs, inputs;
};

/// This rank's row and column of the grid, and the sizes of the weight's blocks along its column.
class Blocks {
 public:
  Blocks(const ParamInfo& info, const StepContext& context)
      : steps(along({kColumns}, context).size()),
        column(along({kColumns}, context).index),
        row(along({kRows}, context).index),
        info_(info),
        context_(context) {}

  /// True for a table, which is stored as [outputs, inputs]; other weights are stored transposed.
  [[nodiscard]] bool table() const {
    const int last = static_cast<int>(info_.shape.size()) - 1;
    return std::any_of(
        info_.spec.splits.begin(), info_.spec.splits.end(), [&](const mesh::Split& split) {
          return split.dim == last && split.axes.has(kColumns);
        });
  }
  /// The size of the weight's block on the rank `step` along kRows.
  [[nodiscard]] Size size(int step) const {
    const int rank = along({kRows}, context_).ranks[static_cast<std::size_t>(step)];
    const mesh::Box box =
        mesh::local_box(info_.shape, info_.spec, context_.tensor->world->mesh(), rank);
    const std::int64_t inputs = box.end.back() - box.begin.back();
    return {box.numel() / inputs, inputs};
  }

  const int steps, column, row;

 private:
  const ParamInfo& info_;
  const StepContext& context_;
};

at::Tensor weight_block(const at::Tensor& weight, int step, Size size, StepContext& context) {
  return broadcast(
      matrix(weight), {size.outputs, size.inputs}, step, kRows, context, "a block of the weight");
}

at::Tensor product(const at::Tensor& x_NI, const at::Tensor& weight_OI) {
  if (x_NI.size(0) == 0) return at::empty({0, weight_OI.size(0)}, x_NI.options().dtype(at::kFloat));
  return ops::linear(x_NI, weight_OI, {}, at::kFloat);
}

at::Tensor input_product(const at::Tensor& dy_NO, const at::Tensor& weight_OI) {
  if (dy_NO.size(0) == 0) return at::empty({0, weight_OI.size(1)}, dy_NO.options());
  return ops::linear_input_grad(dy_NO, weight_OI);
}

at::Tensor weight_product(const at::Tensor& dy_NO, const at::Tensor& x_NI, float scale) {
  const at::Tensor out = at::zeros({dy_NO.size(1), x_NI.size(1)}, x_NI.options().dtype(at::kFloat));
  if (x_NI.size(0) > 0) ops::linear_weight_grad(dy_NO, x_NI, out, /*accumulate=*/false, scale);
  return out;
}

/// Reshapes [B, R, C] to [B R, C].
at::Tensor flat(const at::Tensor& x_BRC) {
  return x_BRC.contiguous().view({x_BRC.size(0) * x_BRC.size(1), x_BRC.size(2)});
}

at::Tensor like_samples(const at::Tensor& x_NC, const at::Tensor& like_BR) {
  return x_NC.view({like_BR.size(0), like_BR.size(1), x_NC.size(1)});
}

}  // namespace

at::Tensor multiply(const at::Tensor& x_BRI,
                    const at::Tensor& weight,
                    const ParamInfo& info,
                    at::ScalarType out,
                    StepContext& context) {
  const Blocks blocks(info, context);
  const at::Tensor x = flat(x_BRI);
  const std::int64_t N = x.size(0);
  const bool table = blocks.table();
  at::Tensor y;
  for (int step = 0; step < blocks.steps; ++step) {
    const Size size = blocks.size(step);
    const at::Tensor w = weight_block(weight, step, size, context);
    if (table) {
      const at::Tensor sum =
          reduce(product(x, w).to(out), step, kColumns, context, "a block of the output");
      if (blocks.column == step) y = sum;
      continue;
    }
    const at::Tensor term =
        product(broadcast(x, {N, size.inputs}, step, kColumns, context, "a block of the input"), w);
    if (y.defined()) {
      y.add_(term);
    } else {
      y = term;
    }
  }
  return like_samples(y.to(out), x_BRI);
}

at::Tensor input_grad(const at::Tensor& dy_BRO,
                      const at::Tensor& weight,
                      const ParamInfo& info,
                      StepContext& context) {
  const Blocks blocks(info, context);
  const at::Tensor dy = flat(dy_BRO);
  const std::int64_t N = dy.size(0);
  const bool table = blocks.table();
  at::Tensor dx;
  for (int step = 0; step < blocks.steps; ++step) {
    const Size size = blocks.size(step);
    const at::Tensor w = weight_block(weight, step, size, context);
    if (!table) {
      const at::Tensor sum =
          reduce(input_product(dy, w), step, kColumns, context, "a block of the input's gradient");
      if (blocks.column == step) dx = sum;
      continue;
    }
    const at::Tensor term = input_product(
        broadcast(
            dy, {N, size.outputs}, step, kColumns, context, "a block of the output's gradient"),
        w);
    if (dx.defined()) {
      dx.add_(term);
    } else {
      dx = term.to(at::kFloat);
    }
  }
  return like_samples(dx.to(dy.scalar_type()), dy_BRO);
}

at::Tensor weight_grad(const at::Tensor& dy_BRO,
                       const at::Tensor& x_BRI,
                       const ParamInfo& info,
                       float scale,
                       StepContext& context) {
  const Blocks blocks(info, context);
  const at::Tensor dy = flat(dy_BRO), x = flat(x_BRI);
  const std::int64_t N = x.size(0);
  const bool table = blocks.table();
  at::Tensor dw;
  for (int step = 0; step < blocks.steps; ++step) {
    const Size size = blocks.size(step);
    const at::Tensor term =
        table ? weight_product(broadcast(dy,
                                         {N, size.outputs},
                                         step,
                                         kColumns,
                                         context,
                                         "a block of the output's gradient"),
                               x,
                               scale)
              : weight_product(
                    dy,
                    broadcast(x, {N, size.inputs}, step, kColumns, context, "a block of the input"),
                    scale);
    const at::Tensor sum = reduce(term, step, kRows, context, "a block of the weight's gradient");
    if (blocks.row == step) dw = sum;
  }
  return grid::sum_over_major(dw, info, context, "gradients of the weight");
}

}  // namespace tessera::nn::two_d
