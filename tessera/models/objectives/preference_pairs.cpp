// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/objectives/preference_pairs.h"

#include <utility>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/losses/dpo.h"
#include "tessera/losses/log_probabilities.h"
#include "tessera/ops/cross_entropy.h"

namespace tessera::models {

PreferencePairs::PreferencePairs(const nn::Batch& batch) {
  const at::Tensor& labels_BT = batch.tensor("labels");
  const at::Tensor& second_B = batch.tensor("second_text");
  const at::Tensor places_T = at::arange(labels_BT.size(1), second_B.options());
  const at::Tensor in_second_BT = places_T.ge(second_B.unsqueeze(1));
  const at::Tensor labelled_BT = labels_BT.ne(ops::kIgnoreLabel);
  const at::Tensor completion_BT = labelled_BT & batch.tensor("completion").ne(0);
  first_text_BT = labelled_BT & in_second_BT.eq(0);
  first_BT = completion_BT & first_text_BT;
  second_BT = completion_BT & in_second_BT;
  first_tokens_B = first_BT.sum(1).to(at::kDouble);
  second_tokens_B = second_BT.sum(1).to(at::kDouble);
}

at::Tensor PreferencePairs::labels(const nn::Batch& batch, const at::Tensor& mask_BT) const {
  const at::Tensor& labels_BT = batch.tensor("labels");
  return at::where(mask_BT, labels_BT, at::full({}, ops::kIgnoreLabel, labels_BT.options()));
}

PairSums pair_sums(const PreferencePairs& texts, const at::Tensor& values_BT, double tail_alpha) {
  if (tail_alpha == 1.0) {
    return {losses::masked_sums(values_BT, texts.first_BT),
            losses::masked_sums(values_BT, texts.second_BT)};
  }
  const at::Tensor shared_B = at::minimum(texts.first_tokens_B, texts.second_tokens_B);
  const auto sum = [&](const at::Tensor& mask_BT) {
    return (values_BT * losses::tail_weights(mask_BT, shared_B, tail_alpha, values_BT)).sum(1);
  };
  return {sum(texts.first_BT), sum(texts.second_BT)};
}

PairSums reference_of(const nn::Batch& batch) {
  const at::Tensor& reference_B2 = batch.tensor("reference");
  return {reference_B2.select(1, 0), reference_B2.select(1, 1)};
}

double total(const at::Tensor& values) {
  return values.is_meta() ? static_cast<double>(values.numel()) : values.sum().item<double>();
}

void add_metric(nn::Outcome& out, std::string name, const at::Tensor& values, int denominator) {
  out.terms.push_back({.name = std::move(name),
                       .sum = values.detach().sum(at::kDouble),
                       .denominator = denominator,
                       .weight = 0.0});
}

void add_reward_metrics(nn::Outcome& out,
                        const at::Tensor& chosen_B,
                        const at::Tensor& rejected_B) {
  add_metric(out, "rewards/chosen", chosen_B);
  add_metric(out, "rewards/rejected", rejected_B);
  add_metric(out, "accuracy", chosen_B.gt(rejected_B));
  add_metric(out, "margin", chosen_B - rejected_B);
}

}  // namespace tessera::models
