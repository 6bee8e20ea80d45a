// SPDX-License-Identifier: Apache-2.0
// Samples of two texts, which lie behind each other in a row and do not see each other: a chosen
// and a rejected completion of one prompt, or a completion and one that answers another prompt.
#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/nn/block.h"
#include "tessera/nn/step_context.h"

// Legend: B samples, T tokens.
namespace tessera::models {

/// Which positions of a batch predict a token of which completion. The batch has "labels" [B, T],
/// the token behind each one of the same text; "completion" [B, T], not 0 where that belongs to the
/// completion; "second_text" [B], where the second text begins.
struct PairedTexts {
  explicit PairedTexts(const nn::Batch& batch);
  at::Tensor first_BT, second_BT;              ///< bool, of the completions
  at::Tensor first_text_BT;                    ///< bool, of all of the first text that has a label
  at::Tensor first_tokens_B, second_tokens_B;  ///< fp64, lengths of the completions
  /// Labels where any of the masks holds, else -100.
  [[nodiscard]] at::Tensor labels(const nn::Batch& batch, const at::Tensor& mask_BT) const;
};

/// Sums over each completion's tokens of `values_BT`, [B]. Where `tail_alpha` is not 1, tokens
/// behind the length of the shorter completion weigh so much.
struct PairSums {
  at::Tensor first_B, second_B;
};
PairSums pair_sums(const PairedTexts& texts, const at::Tensor& values_BT, double tail_alpha = 1.0);

/// The batch's "reference" [B, 2], fp64: the log-probabilities that the starting model gave to both
/// completions. Error{Shape} where it is absent in training.
PairSums reference_of(const nn::Batch& batch);

/// The sum of `values`, for denominators; on meta tensors, which have no values, their number.
double total(const at::Tensor& values);

/// A term that is reported and has no gradient: the sum of `values`.
void add_metric(nn::Outcome& out, std::string name, const at::Tensor& values, int denominator = 0);
/// "rewards/chosen", "rewards/rejected", "accuracy" and "margin" of rewards [B] of both texts.
void add_reward_metrics(nn::Outcome& out, const at::Tensor& chosen_B, const at::Tensor& rejected_B);

}  // namespace tessera::models
