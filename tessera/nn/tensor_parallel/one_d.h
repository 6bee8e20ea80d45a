// SPDX-License-Identifier: Apache-2.0
// Mode 1d: a layer whose output features are cut is followed by one whose input features are, and
// ranks meet before the first and after the second. Source: Shoeybi et al. 2019, "Megatron-LM";
// over tokens: Korthikanti et al. 2022, "Reducing activation recomputation in large transformer
// models". Legend: B batch, T tokens, C channels, N rows of all tokens, V vocabulary.
//
// What moves, each time over [B, T, C]: enter() nothing forward and an all-reduce backward, leave()
// an all-reduce forward and nothing backward; where tokens are cut, an all-gather in place of
// nothing and a reduce-scatter in place of an all-reduce.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "tessera/nn/step_context.h"
#include "tessera/ops/cross_entropy.h"
#include "tessera/tensor/param.h"

namespace tessera::nn::one_d {

/// Which features of a weight [O..., I] are cut.
enum class Cut : std::uint8_t { None, Outputs, Inputs };
Cut cut_of(const ParamInfo& weight);

/// How many ranks hold the same part of a weight that is cut: those that share a head of keys and
/// values. They differ along the rows of the mesh.
int copies_of(const ParamInfo& weight, const StepContext& context);
/// The sum over the ranks that hold the same part of a weight, in place.
void add_over_copies(const at::Tensor& sum, StepContext& context, const char* what);
/// What the layer with cut outputs sees of its input: all tokens. Its gradient is the sum over the
/// ranks.
at::Tensor enter(const at::Tensor& x_BTC, StepContext& context);
/// The sum over the ranks of what the layer with cut inputs makes, or this rank's tokens of it.
/// `partial_BTC` is overwritten: nobody else may need it.
at::Tensor leave(const at::Tensor& partial_BTC, StepContext& context);
/// y + bias, of every rank alike.
at::Tensor add_bias(const at::Tensor& y, const Param& bias, StepContext& context);
/// This rank's tokens of what all ranks have (no gradient).
at::Tensor own_tokens(const at::Tensor& ids_BT, StepContext& context);
/// [..., V] from the ranks' shares of the last dim, which is `weight`'s first. Its gradient is this
/// rank's share.
at::Tensor gather_vocab(const at::Tensor& x, const Param& weight, StepContext& context);

/// ops::linear_cross_entropy() over the ranks' shares of the vocabulary; dlogits of this rank's.
/// `bias_V`: this rank's share, or undefined.
ops::CrossEntropyOut linear_cross_entropy(const at::Tensor& x_NC,
                                          const Param& weight_VC,
                                          const at::Tensor& bias_V,
                                          const at::Tensor& labels_N,
                                          double label_smoothing,
                                          bool want_grad,
                                          StepContext& context,
                                          double softcap = 0.0);

/// Of rows whose logits [N, V / ranks] lie over the ranks of `group`, this rank's columns from
/// `first` on: the sum of the cross-entropies. The logits are overwritten: where `want_grad` they
/// become its gradient.
double cross_entropy_(const at::Tensor& logits_NV,
                      const std::int64_t* labels_N,
                      std::int64_t first,
                      std::int64_t vocab,
                      double label_smoothing,
                      bool want_grad,
                      const comm::Group& group,
                      StepContext& context);

/// What every rank of the group gives, in rank order: [ranks, ...].
at::Tensor all_of(const at::Tensor& mine,
                  const comm::Group& group,
                  const char* what,
                  StepContext& context);

}  // namespace tessera::nn::one_d
