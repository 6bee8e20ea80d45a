// SPDX-License-Identifier: Apache-2.0
// Modes 2d, 2.5d and 3d: ranks form a grid, and what runs between layers is cut over it too:
// samples over one or two of its axes, channels over another. Here is what these modes share: where
// values lie, how they travel, and the layers that are made of that. The products of each mode
// stand in two_d.h and three_d.h. Legend: B samples, R rows of a sample (tokens), C channels, N
// rows of all samples, V vocabulary; sizes are those of this rank's part.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/mesh/mesh.h"
#include "tessera/nn/functional.h"
#include "tessera/nn/step_context.h"
#include "tessera/ops/attention.h"
#include "tessera/ops/dropout.h"
#include "tessera/tensor/param.h"

namespace tessera::nn::grid {

/// Which axes cut a value [B, ..., C]: its samples those of `major`, each part again those of
/// `minor`, its channels those of `channels`.
struct Spread {
  mesh::Axis major, minor, channels;
  [[nodiscard]] mesh::AxisSet samples() const { return {major, minor}; }
};
/// Between layers.
Spread stream(TensorMode mode);
/// Inside of a pair of layers: heads, features of the MLP, the logits.
Spread inner(TensorMode mode);

/// Indices [begin, begin + count).
struct Range {
  std::int64_t begin = 0, count = 0;
};
/// Of `batch` samples: those of this rank.
Range own_samples(std::int64_t batch, const Spread& spread, const TensorParallel& tensor);
/// Those of this rank and the ranks along `minor` together.
Range major_samples(std::int64_t batch, const Spread& spread, const TensorParallel& tensor);
/// How many of them each rank along `minor` has.
std::vector<std::int64_t> minor_counts(std::int64_t batch,
                                       const Spread& spread,
                                       const TensorParallel& tensor);

// What travels. Along an axis: between the ranks that differ in it alone, `index` in their order.
// All of them call the same with the same sizes; of nothing nothing travels. Sums are made in fp32
// and in rank order; fp16 travels as fp32.

const comm::Group& along(mesh::AxisSet axes, const StepContext& context);
/// `own` of the rank `root`, of that size.
at::Tensor broadcast(const at::Tensor& own,
                     at::IntArrayRef sizes,
                     int root,
                     mesh::Axis axis,
                     StepContext& context,
                     const char* what);
/// The sum of all ranks' `mine`, at the rank `root`; undefined elsewhere.
at::Tensor reduce(
    const at::Tensor& mine, int root, mesh::Axis axis, StepContext& context, const char* what);
/// Parts of all ranks put together along `dim`, where they have `counts`.
at::Tensor gather(const at::Tensor& own,
                  std::int64_t dim,
                  const std::vector<std::int64_t>& counts,
                  mesh::Axis axis,
                  StepContext& context,
                  const char* what);
/// This rank's part along `dim` of the sum; the parts have `counts`.
at::Tensor scatter(const at::Tensor& mine,
                   std::int64_t dim,
                   const std::vector<std::int64_t>& counts,
                   mesh::Axis axis,
                   StepContext& context,
                   const char* what);
/// The sum of all ranks' `mine`, at each of them.
at::Tensor sum(const at::Tensor& mine, mesh::AxisSet axes, StepContext& context, const char* what);

/// A matrix [outputs, inputs] or a table as the ranks along the major axis of samples have it
/// between them (3d); where each of them holds the same (2d, 2.5d), itself.
at::Tensor whole_over_major(const at::Tensor& matrix,
                            const ParamInfo& info,
                            StepContext& context,
                            const char* what);
/// The gradient of what whole_over_major() gave: this rank's part of the sum.
at::Tensor sum_over_major(const at::Tensor& gradient,
                          const ParamInfo& info,
                          StepContext& context,
                          const char* what);

// The products of a linear layer; x [B, R, I] and y [B, R, O], each lying as its features do.

/// x weight^T.
at::Tensor multiply(const at::Tensor& x_BRI,
                    const at::Tensor& weight,
                    const ParamInfo& info,
                    at::ScalarType out,
                    StepContext& context);
/// dy as the other two want it: once for both.
at::Tensor gathered(const at::Tensor& dy_BRO, const ParamInfo& info, StepContext& context);
/// dy weight, in dy's dtype.
at::Tensor input_grad(const at::Tensor& gathered_BRO,
                      const at::Tensor& weight,
                      const ParamInfo& info,
                      StepContext& context);
/// Writes or adds scale * dy^T x, summed over all samples, into the weight's sink.
void weight_grad(const at::Tensor& gathered_BRO,
                 const at::Tensor& x_BRI,
                 const Param& weight,
                 float scale,
                 StepContext& context);
/// [B, ..., C] as [B, R, C], contiguous.
at::Tensor by_samples(const at::Tensor& x);

// Layers: what functional.h declares, on the grid.

at::Tensor linear(const at::Tensor& x,
                  const Param& weight,
                  const Param* bias,
                  std::optional<at::ScalarType> out,
                  StepContext& context);
at::Tensor layer_norm(const at::Tensor& x_BTC,
                      const Param& weight,
                      const Param& bias,
                      double eps,
                      StepContext& context);
at::Tensor rms_norm(const at::Tensor& x_BTC, const Param& weight, double eps, StepContext& context);
/// `ids` of all samples; rows of this rank's.
at::Tensor embedding(const at::Tensor& ids_BT, const Param& table, StepContext& context);
/// `labels` of all samples; the sum is over all of them.
VocabLoss vocab_loss(const at::Tensor& x_BTC,
                     const Param& weight_VC,
                     const at::Tensor& labels_BT,
                     double label_smoothing,
                     StepContext& context);
/// [B, T, V] of all samples on every rank, from the ranks' parts. Its gradient is this rank's part.
at::Tensor all_logits(const at::Tensor& x, const Param& weight_VC, StepContext& context);
/// All samples and channels of x [B, ..., C] between layers, on every rank. Its gradient is this
/// rank's part.
at::Tensor gather_flow(const at::Tensor& x, StepContext& context);

/// The masks of this rank's samples and channels of what runs between layers.
void cut_dropout(ops::DropoutKey& key, const StepContext& context);
/// The masks of this rank's samples in attention.
void cut_attention(ops::AttentionArgs& args, const StepContext& context);

}  // namespace tessera::nn::grid
