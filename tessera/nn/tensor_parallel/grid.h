// SPDX-License-Identifier: Apache-2.0
// Modes 2d, 2.5d and 3d: ranks form a grid, and values between layers are split over it as well:
// samples over one or two of its axes, channels over another. This file has what these modes share:
// the placement of values, their communication, and the layers built on it. The matrix products of
// each mode are in two_d.h and three_d.h. Legend: B samples, R rows of a sample (tokens), C
// channels, N rows of all samples, V vocabulary; sizes are those of this rank's part.
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

/// The axes over which a value [B, ..., C] is split: its samples over `major` and each part again
/// over `minor`; its channels over `channels`.
struct Spread {
  mesh::Axis major, minor, channels;
  [[nodiscard]] mesh::AxisSet samples() const { return {major, minor}; }
};
/// The placement between layers.
Spread stream(TensorMode mode);
/// The placement inside a pair of layers: heads, features of the MLP, the logits.
Spread inner(TensorMode mode);
/// The placement of a value with the features of a parameter: that between layers, or that inside a
/// pair of layers.
Spread spread_of(const ParamInfo& info, TensorMode mode);

/// Indices [begin, begin + count).
struct Range {
  std::int64_t begin = 0, count = 0;
};
/// This rank's samples, of `batch` samples.
Range own_samples(std::int64_t batch, const Spread& spread, const TensorParallel& tensor);
/// The samples of this rank and of the ranks along `minor` together.
Range major_samples(std::int64_t batch, const Spread& spread, const TensorParallel& tensor);
/// The number of these samples that each rank along `minor` has.
std::vector<std::int64_t> minor_counts(std::int64_t batch,
                                       const Spread& spread,
                                       const TensorParallel& tensor);

// Communication along an axis takes place between the ranks that differ only in that axis; `index`
// is their order. All of them make the same calls with the same sizes; empty tensors are not sent.
// Sums are computed in fp32 and in rank order; fp16 is sent as fp32.

const comm::Group& along(mesh::AxisSet axes, const StepContext& context);
/// The ranks that have the other features of this rank's tokens inside a pair of layers (heads,
/// columns of the vocabulary). In mode 1d these are all tensor-parallel ranks.
const comm::Group& ranks_inside(const StepContext& context);
/// Returns `own` of the rank `root`; its shape is `sizes`.
at::Tensor broadcast(const at::Tensor& own,
                     at::IntArrayRef sizes,
                     int root,
                     mesh::Axis axis,
                     StepContext& context,
                     const char* what);
/// The sum of `mine` over all ranks, on the rank `root`; undefined elsewhere.
at::Tensor reduce(
    const at::Tensor& mine, int root, mesh::Axis axis, StepContext& context, const char* what);
/// Concatenates the parts of all ranks along `dim`, where they have the sizes `counts`.
at::Tensor gather(const at::Tensor& own,
                  std::int64_t dim,
                  const std::vector<std::int64_t>& counts,
                  mesh::Axis axis,
                  StepContext& context,
                  const char* what);
/// This rank's part of the sum along `dim`; the parts have the sizes `counts`.
at::Tensor scatter(const at::Tensor& mine,
                   std::int64_t dim,
                   const std::vector<std::int64_t>& counts,
                   mesh::Axis axis,
                   StepContext& context,
                   const char* what);
/// The sum of `mine` over all ranks, on every rank.
at::Tensor sum(const at::Tensor& mine, mesh::AxisSet axes, StepContext& context, const char* what);

/// The sum of `mine`, which belongs to this rank's features of a parameter, over the ranks that
/// hold the same features for other samples.
at::Tensor sum_over_samples(const at::Tensor& mine,
                            const ParamInfo& info,
                            StepContext& context,
                            const char* what);

/// The whole matrix [outputs, inputs] or table, gathered from the ranks along the major axis of
/// samples that share it (3d). If each of them holds the same (2d, 2.5d), returns `matrix`.
at::Tensor whole_over_major(const at::Tensor& matrix,
                            const ParamInfo& info,
                            StepContext& context,
                            const char* what);
/// The gradient of whole_over_major(): this rank's part of the sum.
at::Tensor sum_over_major(const at::Tensor& gradient,
                          const ParamInfo& info,
                          StepContext& context,
                          const char* what);

// The matrix products of a linear layer with x [B, R, I] and y [B, R, O]; each is placed as its
// features are.

/// x weight^T.
at::Tensor multiply(const at::Tensor& x_BRI,
                    const at::Tensor& weight,
                    const ParamInfo& info,
                    at::ScalarType out,
                    StepContext& context);
/// Brings dy into the form that input_grad() and weight_grad() need, once for both.
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
/// Writes scale * dy, summed over all samples, into the sink of a bias.
void bias_grad(const at::Tensor& dy_BRO, const Param& bias, float scale, StepContext& context);
/// Returns [B, ..., C] as contiguous [B, R, C].
at::Tensor by_samples(const at::Tensor& x);

// The layers of functional.h on the grid.

at::Tensor linear(const at::Tensor& x,
                  const Param& weight,
                  const Param* bias,
                  std::optional<at::ScalarType> out,
                  StepContext& context);
/// `bias` may be null.
at::Tensor layer_norm(const at::Tensor& x_BTC,
                      const Param& weight,
                      const Param* bias,
                      double eps,
                      StepContext& context);
/// `offset` is added to the weight in fp32.
at::Tensor rms_norm(
    const at::Tensor& x_BTC, const Param& weight, double eps, double offset, StepContext& context);
/// `ids_BT` covers all samples; the result has this rank's samples.
at::Tensor embedding(const at::Tensor& ids_BT, const Param& table, StepContext& context);
/// `labels_BT` covers all samples; the sum is over all of them. `bias_V` may be null.
VocabLoss vocab_loss(const at::Tensor& x_BTC,
                     const Param& weight_VC,
                     const Param* bias_V,
                     const at::Tensor& labels_BT,
                     double label_smoothing,
                     StepContext& context,
                     double softcap);
/// Gathers the ranks' parts to [B, T, V] of all samples on every rank. Its gradient is this rank's
/// part.
at::Tensor all_logits(const at::Tensor& x, const Param& weight_VC, StepContext& context);
/// Gathers the columns of all ranks for the rows of logits_NV, which are this rank's columns by the
/// weight `info`. It has no gradient.
at::Tensor all_columns(const at::Tensor& logits_NV, const ParamInfo& info, StepContext& context);
/// Gathers the samples of x [B, T], which belong to values inside a pair of layers, on every rank.
/// Its gradient is this rank's part.
at::Tensor all_samples(const at::Tensor& x_BT, StepContext& context);
/// Gathers all samples and channels of x [B, ..., C] between layers on every rank. Its gradient is
/// this rank's part.
at::Tensor gather_flow(const at::Tensor& x, StepContext& context);
/// The inverse of gather_flow(): this rank's samples and channels of x [B, ..., C], which all ranks
/// have. Its gradient is gathered.
at::Tensor take_flow(const at::Tensor& x, StepContext& context);

/// Restricts the dropout mask to this rank's samples and channels between layers.
void cut_dropout(ops::DropoutKey& key, const StepContext& context);
/// Restricts the attention masks to this rank's samples. Returns the first one's index.
std::int64_t cut_attention(ops::AttentionArgs& args, const StepContext& context);

}  // namespace tessera::nn::grid
