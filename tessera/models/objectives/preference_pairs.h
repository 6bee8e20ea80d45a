// SPDX-License-Identifier: Apache-2.0
// Samples of two sequences that are concatenated in a row but do not attend to each other: a chosen
// and a rejected completion of one prompt, or a completion and one that answers another prompt.
#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/nn/block.h"
#include "tessera/nn/step_context.h"

// Legend: B samples, T tokens.
namespace tessera::models {

/// Masks of the positions that predict a token of each completion. The batch has "labels" [B, T],
/// the next token of the same sequence; "completion" [B, T], nonzero where that token belongs to
/// the completion; "second_text" [B], the position at which the second sequence begins.
struct PreferencePairs {
  explicit PreferencePairs(const nn::Batch& batch);
  at::Tensor first_BT, second_BT;  ///< bool, tokens of the completions
  /// Bool, all tokens of the first sequence that have a label.
  at::Tensor first_text_BT;
  at::Tensor first_tokens_B, second_tokens_B;  ///< fp64, lengths of the completions
  /// The labels where any of the masks is true, else -100.
  [[nodiscard]] at::Tensor labels(const nn::Batch& batch, const at::Tensor& mask_BT) const;
};

/// Sums of `values_BT` over each completion's tokens, [B]. If `tail_alpha` is not 1, it weights the
/// tokens beyond the length of the shorter completion.
struct PairSums {
  at::Tensor first_B, second_B;
};
PairSums pair_sums(const PreferencePairs& texts,
                   const at::Tensor& values_BT,
                   double tail_alpha = 1.0);

/// The batch's "reference" [B, 2], fp64: the initial model's log-probabilities of both completions.
/// Throws Error{Shape} if it is absent in training.
PairSums reference_of(const nn::Batch& batch);

/// Returns the sum of `values`, for denominators; for meta tensors, which have no values, their
/// number.
double total(const at::Tensor& values);

/// Adds a term that is reported but has no gradient: the sum of `values`.
void add_metric(nn::Outcome& out, std::string name, const at::Tensor& values, int denominator = 0);
/// Adds "rewards/chosen", "rewards/rejected", "accuracy" and "margin" from the rewards [B] of both
/// sequences.
void add_reward_metrics(nn::Outcome& out, const at::Tensor& chosen_B, const at::Tensor& rejected_B);

}  // namespace tessera::models
