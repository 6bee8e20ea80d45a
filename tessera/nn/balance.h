// SPDX-License-Identifier: Apache-2.0
// Terms of the loss that balance the experts of a sparse feed-forward network.
#pragma once

#include <cstdint>

namespace tessera::nn {

/// The terms that a router adds in training, by their coefficients; 0: no such term. With f_e =
/// (choices of expert e) / tokens and P_e = mean of the score of e, a balance term is E * sum_e f_e
/// P_e; perfect balance gives K, the number of experts that a token uses. Padding does not count
/// unless `padding` is set.
struct BalanceSpec {
  double micro_batch = 0.0;  ///< over the tokens of a micro-batch; mean over micro-batches
  double sequence = 0.0;     ///< over the tokens of a sample; mean over samples
  double z = 0.0;            ///< the square of logsumexp(logits); mean over tokens
  /// The term `micro_batch` covers the tokens of all layers together, as in transformers.
  bool pooled_layers = false;
  /// The term `sequence` covers the tokens of a sample in all layers of a stack together, as in
  /// Switch Transformers.
  bool pooled_samples = false;
  /// If not 0, the z term is a mean over samples of the mean over the tokens of this many layers,
  /// which each add their part (Switch Transformers).
  std::int64_t z_layers = 0;
  bool padding = false;  ///< padding counts (Switch Transformers)
  /// Divides f_e by K, so that perfect balance gives 1 (DeepSpeed, Megatron-LM).
  bool per_choice = false;
};
/// True if a term covers several layers, whose sums pass from layer to layer in training.
constexpr bool pools_layers(const BalanceSpec& spec) {
  return spec.pooled_samples ? spec.sequence != 0.0 : spec.pooled_layers && spec.micro_batch != 0.0;
}

}  // namespace tessera::nn
