// SPDX-License-Identifier: Apache-2.0
// The head and the log-probabilities of given tokens in one layer, for losses that are functions of
// these. Legend: B batch, T tokens, C channels, V vocabulary.
#pragma once

#include "tessera/nn/functional.h"

namespace tessera::nn {

struct TokenLogProbabilities {
  at::Tensor values_BT;  ///< fp64, log softmax(logits)[label]; 0 where the label is -100
  /// fp64, log sum p^2 of the distributions, without a gradient; undefined unless requested.
  at::Tensor log_sums_of_squares_BT;
};
/// Computes logits = (x weight^T + bias) / temperature in fp32, soft-capped before the division,
/// only for tokens whose label is not -100. The logits exist from the forward to the end of the
/// backward. `bias_V` may be null. Throws Error{Data} for a label outside of the vocabulary and
/// Error{Unsupported} on a grid of ranks.
TokenLogProbabilities token_log_probabilities(const at::Tensor& x_BTC,
                                              const Param& weight_VC,
                                              const Param* bias_V,
                                              const at::Tensor& labels_BT,
                                              StepContext& context,
                                              double softcap = 0.0,
                                              bool squares = false,
                                              double temperature = 1.0);

/// The log-probabilities of `labels_N` under fp32 logits of the whole vocabulary, soft-capped if
/// the head does so: fp64 [N], the same bits as token_log_probabilities() gives for these logits.
/// Overwrites the logits.
at::Tensor label_log_probabilities_(const at::Tensor& logits_NV,
                                    const at::Tensor& labels_N,
                                    double temperature);

}  // namespace tessera::nn
