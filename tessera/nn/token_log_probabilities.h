// SPDX-License-Identifier: Apache-2.0
// The head and the log-probabilities of given tokens in one layer, for losses that are functions of
// these. Legend: B batch, T tokens, C channels, V vocabulary.
#pragma once

#include <cstdint>

#include "tessera/nn/functional.h"
#include "tessera/ops/support.h"

namespace tessera::nn {

struct TokenLogProbabilities {
  at::Tensor values_BT;  ///< fp64, log softmax(logits)[label]; 0 where the label is -100
  /// fp64, log sum p^2 of the distributions, without a gradient; undefined unless requested.
  at::Tensor log_sums_of_squares_BT;
  /// fp64, the entropies of the distributions, with a gradient; undefined unless requested.
  at::Tensor entropies_BT;
};
/// Options for converting logits to distributions, and the quantities that are computed besides
/// log-probabilities.
struct Distribution {
  double softcap = 0.0;
  double temperature = 1.0;
  /// Ranks that share the vocabulary gather their logits if this is a part of it.
  ops::Support support = {};
  bool squares = false, entropies = false;
};
/// Computes logits = (x weight^T + bias) / temperature in fp32, soft-capped before the division,
/// only for tokens whose label is not -100. The logits exist from the forward to the end of the
/// backward. `bias_V` may be null. On a grid of ranks the results are those of all samples, and the
/// logits of tokens without a label are computed, too. Throws Error{Data} for a label outside of
/// the vocabulary.
TokenLogProbabilities token_log_probabilities(const at::Tensor& x_BTC,
                                              const Param& weight_VC,
                                              const Param* bias_V,
                                              const at::Tensor& labels_BT,
                                              StepContext& context,
                                              const Distribution& how = {});

/// The distributions of the next token from logits of the whole vocabulary, which token by token
/// are those of token_log_probabilities() to the bit. Legend: N texts, V vocabulary.
class NextDistributions {
 public:
  /// `logits_NV`: fp32 in host memory, already soft-capped; overwritten. Throws Error{Numeric} for
  /// logits that are not numbers.
  NextDistributions(const at::Tensor& logits_NV, const Distribution& how);
  /// Draws one of the first `vocab` tokens with Philox(seed)(position).
  [[nodiscard]] std::int64_t draw(std::int64_t row,
                                  std::int64_t vocab,
                                  std::uint64_t seed,
                                  std::int64_t position) const;
  [[nodiscard]] double log_probability(std::int64_t row, std::int64_t id) const;
  [[nodiscard]] double entropy(std::int64_t row) const;

 private:
  at::Tensor logits_NV_, weights_NV_;  ///< weights: e^(logit - largest)
  at::Tensor largest_N_, sums_N_;
};

}  // namespace tessera::nn
