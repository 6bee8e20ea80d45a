// SPDX-License-Identifier: Apache-2.0
#include "tessera/rlhf/report.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <set>
#include <utility>

#include <ATen/ATen.h>

#include "tessera/losses/kl.h"
#include "tessera/losses/log_probabilities.h"

namespace tessera::rlhf {
namespace {

double number(const at::Tensor& value) {
  return value.item<double>();
}

/// For whole groups: the deviation of their rewards, and whether all are equal.
void add_groups(engine::Metrics& out, const at::Tensor& rewards_B, std::int64_t samples) {
  if (samples < 2) return;
  const at::Tensor rewards_GS = rewards_B.view({-1, samples});
  const at::Tensor spread_G = rewards_GS.amax(1) - rewards_GS.amin(1);
  const auto groups = static_cast<double>(rewards_GS.size(0));
  out.push_back({"reward_std", number(rewards_GS.std(1).mean()), groups});
  out.push_back({"equal_groups", number(spread_G.eq(0).to(at::kDouble).mean()), groups});
}

/// Returns the mean share of the sequences of three tokens of a completion that it has more than
/// once; completions of fewer tokens count as 0.
double repetition_of(std::span<const Completion> completions) {
  constexpr std::size_t kTokens = 3;
  double sum = 0;
  for (const Completion& one : completions) {
    if (one.ids.size() < kTokens) continue;
    const std::size_t count = one.ids.size() - kTokens + 1;
    std::set<std::array<std::int32_t, kTokens>> different;
    for (std::size_t i = 0; i < count; ++i)
      different.insert({one.ids[i], one.ids[i + 1], one.ids[i + 2]});
    sum += 1.0 - static_cast<double>(different.size()) / static_cast<double>(count);
  }
  return sum / static_cast<double>(completions.size());
}

}  // namespace

engine::Metrics report_of(const RolloutFacts& facts, const tasks::RlOptions& options) {
  const Scored& scored = facts.scored;
  const auto size = static_cast<double>(facts.completions.size());
  double tokens = 0, truncated = 0, entropy = 0;
  for (const Completion& one : facts.completions) {
    tokens += static_cast<double>(one.ids.size());
    truncated += one.ended ? 0.0 : 1.0;
    entropy += one.entropy;
  }
  engine::Metrics out;
  const at::Tensor rewards_B = (scored.rewards_BF.nan_to_num() * scored.weights_F).sum(1);
  out.push_back({"reward", number(rewards_B.mean()), size});
  if (facts.reward_names.size() > 1) {
    for (std::size_t f = 0; f < facts.reward_names.size(); ++f) {
      const at::Tensor own_B = scored.rewards_BF.select(1, static_cast<std::int64_t>(f));
      const double there = number(own_B.isnan().logical_not().sum().to(at::kDouble));
      if (there > 0)
        out.push_back({"reward/" + facts.reward_names[f], number(own_B.nanmean()), there});
    }
  }
  add_groups(out, rewards_B, options.samples);
  out.push_back({"length", tokens / size, size});
  out.push_back({"truncated", truncated / size, size});
  out.push_back({"entropy", entropy / tokens, tokens});
  out.push_back({"repetition", repetition_of(facts.completions), size});
  if (scored.reference_BT.defined()) {
    const at::Tensor kl_BT = losses::kl_estimators().get("k3")(scored.old_BT, scored.reference_BT);
    out.push_back({"kl_reference", number(losses::masked_mean(kl_BT, scored.mask_BT)), tokens});
  }
  if (scored.values_BT.defined() && facts.returns_BT.defined()) {
    const at::Tensor returns = facts.returns_BT.masked_select(scored.mask_BT),
                     left = returns - scored.values_BT.masked_select(scored.mask_BT);
    const double variance = returns.numel() > 1 ? number(returns.var()) : 0.0;
    if (variance > 0)
      out.push_back({"explained_variance", 1.0 - number(left.var()) / variance, tokens});
  }
  if (facts.measured) add_parity(out, facts.generated_BT, scored.old_BT, scored.mask_BT);
  return out;
}

void add_parity(engine::Metrics& to,
                const at::Tensor& generated_BT,
                const at::Tensor& trained_BT,
                const at::Tensor& mask_BT) {
  const auto tokens = number(mask_BT.sum().to(at::kDouble));
  const at::Tensor apart_BT =
      at::where(mask_BT, (generated_BT - trained_BT).abs(), at::zeros({}, generated_BT.options()));
  to.push_back({"parity_max", number(apart_BT.max()), tokens});
  to.push_back({"parity_mean", number(apart_BT.sum()) / std::max(tokens, 1.0), tokens});
}

void add_ratios(engine::Metrics& to,
                const at::Tensor& learned_BT,
                const at::Tensor& written_BT,
                const at::Tensor& mask_BT) {
  const auto tokens = number(mask_BT.sum().to(at::kDouble));
  const at::Tensor ratios_BT =
      at::where(mask_BT, (learned_BT - written_BT).exp(), at::zeros({}, learned_BT.options()));
  to.push_back({"ratio", number(ratios_BT.sum()) / std::max(tokens, 1.0), tokens});
  to.push_back({"ratio_max", number(ratios_BT.max()), tokens});
}

}  // namespace tessera::rlhf
