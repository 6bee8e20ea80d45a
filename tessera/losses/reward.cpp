// SPDX-License-Identifier: Apache-2.0
#include "tessera/losses/reward.h"

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/text.h"
#include "tessera/losses/log_probabilities.h"

namespace tessera::losses {
namespace {

/// The position of the first true element of each row; `otherwise` if there is none.
at::Tensor first_place(const at::Tensor& marked_PT, std::int64_t otherwise) {
  const at::Tensor places_T = at::arange(marked_PT.size(1), marked_PT.options().dtype(at::kLong));
  return at::where(marked_PT, places_T, at::full({}, otherwise, places_T.options())).amin(1);
}

/// The position of padding token number `leading` in each row, else the row's length.
at::Tensor text_ends(const at::Tensor& ids_PT, std::int64_t padding, std::int64_t leading) {
  const at::Tensor padding_PT = ids_PT.eq(padding);
  return first_place(padding_PT.logical_and(padding_PT.cumsum(1).eq(leading + 1)), ids_PT.size(1));
}

}  // namespace

at::Tensor pairwise_reward(const at::Tensor& chosen_P,
                           const at::Tensor& rejected_P,
                           const at::Tensor& margin_P,
                           double centering) {
  at::Tensor difference_P = chosen_P - rejected_P;
  if (margin_P.defined()) difference_P = difference_P - margin_P;
  const at::Tensor loss_P = -log_sigmoid_of(difference_P);
  return centering == 0.0 ? loss_P : loss_P + centering * (chosen_P + rejected_P).square();
}

std::string pairwise_reward_formula(double centering) {
  std::string out = "-log sigmoid(chosen - rejected - margin)";
  if (centering != 0.0) out += fmt::format(" + {} (chosen + rejected)^2", text::number(centering));
  return out;
}

ComparedTokens compared_tokens(const at::Tensor& chosen_ids_PT,
                               const at::Tensor& rejected_ids_PT,
                               std::int64_t padding,
                               std::int64_t leading_padding) {
  const std::int64_t T = chosen_ids_PT.size(1);
  ComparedTokens out;
  out.chosen_end_P = text_ends(chosen_ids_PT, padding, leading_padding);
  out.rejected_end_P = text_ends(rejected_ids_PT, padding, leading_padding);
  const at::Tensor differ_PT = chosen_ids_PT.ne(rejected_ids_PT), any_P = differ_PT.any(1);
  out.begin_P = first_place(differ_PT, T - 1);
  out.end_P = at::where(any_P,
                        at::maximum(out.chosen_end_P, out.rejected_end_P),
                        at::full({}, T, out.chosen_end_P.options()));
  return out;
}

at::Tensor tokenwise_reward(const at::Tensor& chosen_PT,
                            const at::Tensor& rejected_PT,
                            const ComparedTokens& tokens) {
  const at::Tensor places_T =
      at::arange(chosen_PT.size(1), tokens.begin_P.options().dtype(at::kLong));
  const at::Tensor compared_PT =
      places_T.ge(tokens.begin_P.unsqueeze(1)).logical_and(places_T.lt(tokens.end_P.unsqueeze(1)));
  const at::Tensor loss_PT = -log_sigmoid_of(chosen_PT - rejected_PT);
  const at::Tensor count_P = (tokens.end_P - tokens.begin_P).clamp_min(1).to(loss_PT.scalar_type());
  return at::where(compared_PT, loss_PT, at::zeros({}, loss_PT.options())).sum(1) / count_P;
}

std::string tokenwise_reward_formula() {
  return "the mean of -log sigmoid(chosen[t] - rejected[t]) over the tokens t from the first "
         "difference to the end of the longer sequence";
}

}  // namespace tessera::losses
