// SPDX-License-Identifier: Apache-2.0
// Losses of reward models, which learn from pairs to score the chosen sequence above the rejected
// one (Bradley and Terry).
#pragma once

#include <cstdint>
#include <string>

#include <ATen/core/Tensor.h>

// Legend: P pairs, T tokens.
namespace tessera::losses {

/// The loss of each pair from the scores of its two sequences: -log sigmoid(chosen - rejected -
/// margin), plus `centering` * (chosen + rejected)^2, which keeps the mean score at 0. `margin_P`:
/// undefined without margins. [P] -> [P].
at::Tensor pairwise_reward(const at::Tensor& chosen_P,
                           const at::Tensor& rejected_P,
                           const at::Tensor& margin_P = {},
                           double centering = 0.0);
/// Returns pairwise_reward() as a formula of the two scores.
std::string pairwise_reward_formula(double centering);

/// The range of tokens of a pair that DeepSpeed-Chat compares: [begin, end).
struct ComparedTokens {
  at::Tensor begin_P, end_P;                ///< int64
  at::Tensor chosen_end_P, rejected_end_P;  ///< after each sequence's last token
};
/// From the first token that differs between the two sequences to the end of the longer one; for
/// equal sequences, only the last token of the row. A sequence ends at its padding token number
/// `leading_padding` (0: the first one), or with the row. ids [P, T] int64.
ComparedTokens compared_tokens(const at::Tensor& chosen_ids_PT,
                               const at::Tensor& rejected_ids_PT,
                               std::int64_t padding,
                               std::int64_t leading_padding = 0);
/// DeepSpeed-Chat's loss of each pair: the mean of -log sigmoid(chosen - rejected) over the
/// compared tokens. Scores of all tokens [P, T] -> [P].
at::Tensor tokenwise_reward(const at::Tensor& chosen_PT,
                            const at::Tensor& rejected_PT,
                            const ComparedTokens& tokens);
/// Returns tokenwise_reward() as a formula of the scores of tokens.
std::string tokenwise_reward_formula();

}  // namespace tessera::losses
