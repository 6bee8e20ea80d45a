// SPDX-License-Identifier: Apache-2.0
#include "tessera/rlhf/worths.h"

#include <algorithm>

#include <ATen/ATen.h>

namespace tessera::rlhf {
namespace {

std::vector<double> numbers_of(const at::Tensor& values) {
  const at::Tensor flat = values.contiguous();
  const auto* const data = flat.const_data_ptr<double>();
  return {data, data + flat.numel()};
}

}  // namespace

Worth worth_of(const Scored& scored, const Advantages& made, std::int64_t b) {
  const at::Tensor mask_T = scored.mask_BT[b];
  const auto list = [&](const at::Tensor& of_BT) {
    return of_BT.defined() ? numbers_of(of_BT[b].masked_select(mask_T)) : std::vector<double>();
  };
  return {.rewards = numbers_of(scored.rewards_BF[b]),
          .old = list(scored.old_BT),
          .reference = list(scored.reference_BT),
          .values = list(scored.values_BT),
          .advantages = list(made.advantages_BT),
          .returns = list(made.returns_BT)};
}

bool take_over(const std::vector<Worth>& worths,
               const Rows& rows,
               Scored& scored,
               Advantages& made) {
  bool equal = true;
  const auto columns = [&](std::vector<double> Worth::*list) {
    equal = equal && std::ranges::all_of(worths, [&](const Worth& one) {
              return (one.*list).empty() == (worths.front().*list).empty();
            });
    if (!equal || (worths.front().*list).empty()) return at::Tensor();
    return in_columns(rows, [&](std::int64_t b, std::int64_t token) {
      return (worths[static_cast<std::size_t>(b)].*list)[static_cast<std::size_t>(token)];
    });
  };
  std::vector<double> rewards;
  for (const Worth& worth : worths)
    rewards.insert(rewards.end(), worth.rewards.begin(), worth.rewards.end());
  scored.rewards_BF = at::tensor(rewards, at::kDouble).view({std::ssize(worths), -1});
  scored.old_BT = columns(&Worth::old);
  scored.reference_BT = columns(&Worth::reference);
  scored.values_BT = columns(&Worth::values);
  made = {columns(&Worth::advantages), columns(&Worth::returns)};
  return equal;
}

std::optional<std::string> complaint_of_dropped(const Scored& scored, const at::Tensor& labels_BT) {
  if (scored.rewards_BF.isnan().all().item<bool>()) {
    return "no completion of a rollout has a reward, so that the update learns nothing of them; "
           "let "
           "the rewards of rl.rewards give numbers";
  }
  if (!labels_BT.ge(0).any().item<bool>()) {
    return "all completions of a rollout reach rl.max_new_tokens without an end and are left out "
           "of "
           "the loss, so that the update learns nothing; raise rl.max_new_tokens, or set "
           "rl.truncated to keep";
  }
  return std::nullopt;
}

}  // namespace tessera::rlhf
