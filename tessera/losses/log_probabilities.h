// SPDX-License-Identifier: Apache-2.0
// Functions of logits for given tokens: log-probabilities, entropies, and sums over masked tokens.
#pragma once

#include <ATen/core/Tensor.h>

// Legend: B sequences, T tokens, V vocabulary.
namespace tessera::losses {

/// log softmax(logits)[id] of each token: logits [..., V] and int64 ids [...] -> [...], in the
/// dtype of the logits. Differentiable. Error{Shape} for other shapes.
at::Tensor token_log_probabilities(const at::Tensor& logits, const at::Tensor& ids);
/// -sum p log p of the distribution of each token: [..., V] -> [...]. Differentiable.
at::Tensor token_entropies(const at::Tensor& logits);
/// log sum p^2 of the distribution of each token: the log-probability that two samples are equal.
at::Tensor log_sums_of_squares(const at::Tensor& logits);

/// Sums over the tokens whose mask is not 0: [B, T] -> [B].
at::Tensor masked_sums(const at::Tensor& values_BT, const at::Tensor& mask_BT);
/// Means over the tokens whose mask is not 0; 0 for a sequence without any: [B, T] -> [B].
at::Tensor masked_means(const at::Tensor& values_BT, const at::Tensor& mask_BT);
/// The mean over all such tokens, 0-d; 0 if there are none.
at::Tensor masked_mean(const at::Tensor& values_BT, const at::Tensor& mask_BT);

/// ln(1 / (1 + exp(-x))), for any x; also works on meta tensors.
at::Tensor log_sigmoid_of(const at::Tensor& x);

}  // namespace tessera::losses
