// SPDX-License-Identifier: Apache-2.0
#include "tessera/losses/policy.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/losses/kl.h"
#include "tessera/losses/log_probabilities.h"

namespace tessera::losses {
namespace {

/// Larger log-ratios are clamped to it.
constexpr double kLargestLogRatio = 20.0, kSmallestRatio = 1e-8;

at::Tensor scalar(double value, const at::Tensor& like) {
  return at::full({}, value, like.options());
}

at::Tensor surrogate(const at::Tensor& ratios,
                     const at::Tensor& advantages,
                     double low,
                     double high,
                     std::optional<double> delta) {
  const at::Tensor clipped = ratios.clamp(1 - low, 1 + high);
  const at::Tensor bounded = delta ? ratios.clamp_max(*delta) : ratios;
  return -at::minimum(bounded * advantages, clipped * advantages);
}

at::Tensor clipped(const PolicyRatios& of, const PolicyOptions& options) {
  return surrogate(
      of.ratios_BL, of.advantages, options.epsilon_low, options.epsilon_high, options.delta);
}

std::string clipped_formula(const PolicyOptions& options) {
  const std::string bounded =
      options.delta ? fmt::format("min(rho, {})", text::number(*options.delta)) : "rho";
  return fmt::format("-min({} A, clip(rho, 1 - {}, 1 + {}) A)",
                     bounded,
                     text::number(options.epsilon_low),
                     text::number(options.epsilon_high));
}

/// Chen et al. 2025 (MiniMax-M1): the clipped ratio is a weight without a gradient.
at::Tensor cispo(const PolicyRatios& of, const PolicyOptions& options) {
  return -of.ratios_BL.detach().clamp_max(options.epsilon_high) * of.advantages *
         of.log_probabilities_BT;
}

std::string cispo_formula(const PolicyOptions& options) {
  return fmt::format("-min(rho, {}) A log p, where rho has no gradient",
                     text::number(options.epsilon_high));
}

/// Gao et al. 2025 (SAPO): a sigmoid instead of the clip, with slope 1 at a ratio of 1.
at::Tensor sapo(const PolicyRatios& of, const PolicyOptions& options) {
  const at::Tensor steepness = at::where(of.advantages.gt(0),
                                         scalar(options.sapo_temperature_positive, of.advantages),
                                         scalar(options.sapo_temperature_negative, of.advantages));
  return -at::sigmoid(steepness * (of.ratios_BL - 1)) * (4 / steepness) * of.advantages;
}

std::string sapo_formula(const PolicyOptions& options) {
  return fmt::format("-(4 / t) sigmoid(t (rho - 1)) A with t = {} for A > 0, else {}",
                     text::number(options.sapo_temperature_positive),
                     text::number(options.sapo_temperature_negative));
}

/// VESPO (2026): e^lambda w^k e^(-lambda w), with the completion's ratio w and without a gradient,
/// weights the log-probability.
at::Tensor vespo(const PolicyRatios& of, const PolicyOptions& options) {
  const at::Tensor sum_B1 =
      masked_sums(of.log_ratios_BT.detach().clamp(-kLargestLogRatio, kLargestLogRatio), of.mask_BT)
          .unsqueeze(1);
  const at::Tensor log_w_B1 = sum_B1.clamp(std::log(kSmallestRatio), kLargestLogRatio);
  const at::Tensor wanted = of.advantages.ge(0);
  const at::Tensor k = at::where(wanted,
                                 scalar(options.vespo_k_positive, of.advantages),
                                 scalar(options.vespo_k_negative, of.advantages));
  const at::Tensor lambda =
      at::where(wanted,
                scalar(std::max(options.vespo_lambda_positive, 1e-4), of.advantages),
                scalar(std::max(options.vespo_lambda_negative, 1e-4), of.advantages));
  const at::Tensor phi = at::exp(lambda + k * log_w_B1 - lambda * log_w_B1.exp());
  return -phi * of.advantages * of.log_probabilities_BT;
}

std::string vespo_formula(const PolicyOptions& options) {
  return fmt::format(
      "-e^l w^k e^(-l w) A log p, where w, the ratio of the whole completion, has no gradient, "
      "with "
      "k = {}, l = {} for A >= 0, else k = {}, l = {}",
      text::number(options.vespo_k_positive),
      text::number(options.vespo_lambda_positive),
      text::number(options.vespo_k_negative),
      text::number(options.vespo_lambda_negative));
}

/// Returns whether completions with a negative advantage are close enough to the policy, [B, 1]
/// bool.
at::Tensor near_policy(const PolicyRatios& of, double threshold) {
  const at::Tensor drift_B1 = masked_means(-of.log_ratios_BT.detach(), of.mask_BT).unsqueeze(1);
  return of.advantages.ge(0).bitwise_or(drift_B1.le(threshold));
}

}  // namespace

at::Tensor aggregated_sum(Aggregation how, const at::Tensor& losses_BT, const at::Tensor& mask_BT) {
  if (how == Aggregation::SequenceMeans) return masked_means(losses_BT, mask_BT).sum();
  return masked_sums(losses_BT, mask_BT).sum();
}

double aggregated_count(Aggregation how, const at::Tensor& mask_BT, std::int64_t longest) {
  switch (how) {
    case Aggregation::TokenMean:
      return static_cast<double>(mask_BT.ne(0).sum().item<std::int64_t>());
    case Aggregation::FixedLength:
      return static_cast<double>(mask_BT.size(0) * longest);
    default:
      return static_cast<double>(mask_BT.size(0));
  }
}

std::string aggregation_formula(Aggregation how, std::int64_t longest) {
  switch (how) {
    case Aggregation::SequenceMeans:
      return "the mean over completions of the means over their tokens of L";
    case Aggregation::TokenMean:
      return "the mean over all tokens of L";
    case Aggregation::FixedLength:
      return fmt::format("the sum over all tokens of L / ({} x the number of completions)",
                         longest);
    case Aggregation::SequenceSums:
      return "the mean over completions of the sums over their tokens of L";
  }
  return "";
}

const Registry<PolicyLoss>& policy_losses() {
  static const Registry<PolicyLoss> registry = [] {
    using enum Aggregation;
    Registry<PolicyLoss> out("loss of a policy");
    out.add("grpo", {clipped, SequenceMeans, /*clips=*/true, clipped_formula});
    out.add("bnpo", {clipped, TokenMean, /*clips=*/true, clipped_formula});
    out.add("dapo", {clipped, TokenMean, /*clips=*/true, clipped_formula});
    out.add("dr_grpo", {clipped, FixedLength, /*clips=*/true, clipped_formula});
    out.add("luspo", {clipped, SequenceSums, /*clips=*/true, clipped_formula});
    out.add("cispo", {cispo, TokenMean, /*clips=*/false, cispo_formula});
    out.add("vespo", {vespo, TokenMean, /*clips=*/false, vespo_formula});
    out.add("sapo", {sapo, SequenceMeans, /*clips=*/false, sapo_formula});
    return out;
  }();
  return registry;
}

at::Tensor high_entropy_tokens(const at::Tensor& entropies_BT,
                               const at::Tensor& mask_BT,
                               double share) {
  const at::Tensor there_BT = mask_BT.ne(0), chosen = entropies_BT.detach().masked_select(there_BT);
  if (chosen.numel() == 0) return there_BT;
  return entropies_BT.detach().ge(at::quantile(chosen, 1 - share)).logical_and(there_BT);
}

PolicyOutcome policy_loss(const PolicyLoss& loss,
                          const PolicySample& sample,
                          const PolicyOptions& options) {
  const at::Tensor& log_p_BT = sample.log_probabilities_BT;
  TESSERA_REQUIRE(
      log_p_BT.sizes() == sample.mask_BT.sizes() && sample.advantages.size(0) == log_p_BT.size(0),
      Shape,
      "log-probabilities, mask and advantages of other sizes",
      "give [completions, tokens], and an advantage for each completion or token");
  PolicyRatios of;
  of.log_probabilities_BT = log_p_BT;
  of.mask_BT = sample.mask_BT;
  of.advantages = sample.advantages.dim() == 1 ? sample.advantages.unsqueeze(1) : sample.advantages;
  of.log_ratios_BT = log_p_BT - (sample.old_BT.defined() ? sample.old_BT : log_p_BT.detach());
  of.ratios_BL = (options.sequence_level ? masked_means(of.log_ratios_BT, of.mask_BT).unsqueeze(1)
                                         : of.log_ratios_BT)
                     .exp();

  PolicyOutcome out;
  at::Tensor losses = loss.losses(of, options);
  if (options.off_policy_threshold)
    losses = losses * near_policy(of, *options.off_policy_threshold).to(losses.scalar_type());
  if (options.top_entropy_quantile < 1.0) {
    out.entropy_mask_BT =
        high_entropy_tokens(sample.entropies_BT, sample.mask_BT, options.top_entropy_quantile);
    losses = losses * out.entropy_mask_BT.to(losses.scalar_type());
  }
  if (sample.reference_BT.defined()) {
    out.kl_BT = kl_estimators().get("k3")(log_p_BT, sample.reference_BT);
    if (options.corrected_kl) out.kl_BT = out.kl_BT * of.ratios_BL;
    losses = losses + options.kl_coefficient * out.kl_BT;
  }
  out.losses_BT = losses.expand(log_p_BT.sizes());
  if (loss.clips) {
    at::Tensor ratios = of.ratios_BL.detach();
    if (options.delta) ratios = ratios.clamp_max(*options.delta);  // as TRL counts them
    out.low_BL = ratios.lt(1 - options.epsilon_low).bitwise_and(of.advantages.lt(0));
    out.high_BL = ratios.gt(1 + options.epsilon_high).bitwise_and(of.advantages.gt(0));
  }
  return out;
}

at::Tensor sequence_surrogate(const at::Tensor& log_probabilities_B,
                              const at::Tensor& old_B,
                              const at::Tensor& advantages_B,
                              double epsilon_low,
                              double epsilon_high) {
  return surrogate(
      (log_probabilities_B - old_B).exp(), advantages_B, epsilon_low, epsilon_high, {});
}

}  // namespace tessera::losses
