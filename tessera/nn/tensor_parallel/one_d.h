// SPDX-License-Identifier: Apache-2.0
// Mode 1d: a layer with split output features is followed by one with split input features; ranks
// communicate before the first and after the second. Source: Shoeybi et al. 2019, "Megatron-LM";
// with split tokens: Korthikanti et al. 2022, "Reducing activation recomputation in large
// transformer models". Legend: B batch, T tokens, C channels, N rows of all tokens, V vocabulary.
//
// Communication, each time of [B, T, C]: enter() needs nothing forward and an all-reduce backward;
// leave() an all-reduce forward and nothing backward. If tokens are split, an all-gather replaces
// nothing, and a reduce-scatter replaces an all-reduce.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "tessera/nn/step_context.h"
#include "tessera/ops/cross_entropy.h"
#include "tessera/tensor/param.h"

namespace tessera::nn::one_d {

/// The features of a weight [O..., I] that are split.
enum class Cut : std::uint8_t { None, Outputs, Inputs };
Cut cut_of(const ParamInfo& weight);

/// The number of ranks that hold the same part of a split weight, because they share a head of keys
/// and values. They differ along the rows of the mesh.
int copies_of(const ParamInfo& weight, const StepContext& context);
/// Sums in place over the ranks that hold the same part of a weight.
void add_over_copies(const at::Tensor& sum, StepContext& context, const char* what);
/// The input of a layer with split outputs: all tokens. Its gradient is the sum over the ranks.
at::Tensor enter(const at::Tensor& x_BTC, StepContext& context);
/// Sums the output of a layer with split inputs over the ranks, and returns all of it, or this
/// rank's tokens if tokens are split. `partial_BTC` is overwritten; the caller must not need it any
/// more.
at::Tensor leave(const at::Tensor& partial_BTC, StepContext& context);
/// This rank's tokens of a tensor that all ranks have (no gradient).
at::Tensor own_tokens(const at::Tensor& ids_BT, StepContext& context);
/// Gathers [..., V] from the ranks' shares of the last dim, which is the first dim of `weight`. Its
/// gradient is this rank's share.
at::Tensor gather_vocab(const at::Tensor& x, const Param& weight, StepContext& context);

/// ops::linear_cross_entropy() over the ranks' shares of the vocabulary; the result has dlogits of
/// this rank's share. `bias_V`: this rank's share, or undefined.
ops::CrossEntropyOut linear_cross_entropy(const at::Tensor& x_NC,
                                          const Param& weight_VC,
                                          const at::Tensor& bias_V,
                                          const at::Tensor& labels_N,
                                          double label_smoothing,
                                          bool want_grad,
                                          StepContext& context,
                                          double softcap = 0.0);

/// The sum of the cross-entropies [] fp64 of rows whose logits [N, V / ranks] are distributed over
/// the ranks of `group`; this rank has the columns from `first` on. The logits are overwritten: if
/// `want_grad`, with the gradient.
at::Tensor cross_entropy_(const at::Tensor& logits_NV,
                          const at::Tensor& labels_N,
                          std::int64_t first,
                          std::int64_t vocab,
                          double label_smoothing,
                          bool want_grad,
                          const comm::Group& group,
                          StepContext& context);

/// Posts what cross_entropy_() exchanges for this number of rows whose logits are on meta.
void post_shape_of_measures(std::int64_t rows, const comm::Group& group, StepContext& context);

/// Gathers `mine` of every rank of the group, in rank order: [ranks, ...].
at::Tensor all_of(const at::Tensor& mine,
                  const comm::Group& group,
                  const char* what,
                  StepContext& context);

}  // namespace tessera::nn::one_d
