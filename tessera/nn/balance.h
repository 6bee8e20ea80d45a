// SPDX-License-Identifier: Apache-2.0
// Terms of the loss that balance the experts of a sparse feed-forward network.
#pragma once

namespace tessera::nn {

/// The terms that a router adds in training, by their coefficients; 0: no such term. With f_e =
/// (choices of expert e) / tokens and P_e = mean of the score of e, a balance term is E * sum_e f_e
/// P_e; perfect balance gives K, the number of experts that a token uses. Padding does not count.
struct BalanceSpec {
  double micro_batch = 0.0;  ///< over the tokens of a micro-batch; mean over micro-batches
  double sequence = 0.0;     ///< over the tokens of a sample; mean over samples
  double z = 0.0;            ///< the square of logsumexp(logits); mean over tokens
  /// The term `micro_batch` covers the tokens of all layers together, as in transformers.
  bool pooled_layers = false;
  /// Divides f_e by K, so that perfect balance gives 1 (DeepSpeed, Megatron-LM).
  bool per_choice = false;
};

}  // namespace tessera::nn
