// SPDX-License-Identifier: Apache-2.0
#include "tessera/losses/cpo_orpo.h"

#include <cmath>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/text.h"
#include "tessera/losses/dpo.h"
#include "tessera/losses/log_probabilities.h"

namespace tessera::losses {
namespace {

at::Tensor cpo_sigmoid(const at::Tensor& margins_P, const CpoOptions& options) {
  return smoothed_logistic(options.beta * margins_P, options.label_smoothing);
}
std::string cpo_sigmoid_formula(const CpoOptions& options) {
  return smoothed_logistic_formula(fmt::format("{} m", text::number(options.beta)),
                                   options.label_smoothing);
}
at::Tensor cpo_hinge(const at::Tensor& margins_P, const CpoOptions& options) {
  return at::relu(1 - options.beta * margins_P);
}
std::string cpo_hinge_formula(const CpoOptions& options) {
  return fmt::format("max(0, 1 - {} m)", text::number(options.beta));
}
at::Tensor cpo_ipo(const at::Tensor& margins_P, const CpoOptions& options) {
  return (margins_P - 1 / (2 * options.beta)).square();
}
std::string cpo_ipo_formula(const CpoOptions& options) {
  return fmt::format("(m - 1 / (2 x {}))^2", text::number(options.beta));
}
at::Tensor simpo(const at::Tensor& margins_P, const CpoOptions& options) {
  return smoothed_logistic(options.beta * margins_P - options.gamma, options.label_smoothing);
}

std::string simpo_formula(const CpoOptions& options) {
  return smoothed_logistic_formula(
      fmt::format("{} m - {}", text::number(options.beta), text::number(options.gamma)),
      options.label_smoothing);
}

/// log(1 - e^x) for x <= 0, exact at both ends (Maechler 2012).
at::Tensor log1m_exp(const at::Tensor& x) {
  const at::Tensor near_zero = x.gt(-std::log(2.0));
  // Each branch reads only its own elements, because the other's gradient would be 0 * infinity.
  const at::Tensor inside = at::where(near_zero, x, at::full_like(x, -1.0)),
                   outside = at::where(near_zero, at::full_like(x, -1.0), x);
  return at::where(near_zero, at::log(-at::expm1(inside)), at::log1p(-at::exp(outside)));
}

}  // namespace

const Registry<CpoLoss>& cpo_losses() {
  static const Registry<CpoLoss> registry = [] {
    Registry<CpoLoss> out("loss of pairs without a reference");
    out.add("sigmoid", {.losses = cpo_sigmoid, .formula = cpo_sigmoid_formula});
    out.add("hinge", {.losses = cpo_hinge, .formula = cpo_hinge_formula});
    out.add("ipo", {.losses = cpo_ipo, .formula = cpo_ipo_formula, .of_means = true});
    out.add("simpo", {.losses = simpo, .formula = simpo_formula, .of_means = true});
    return out;
  }();
  return registry;
}

at::Tensor cpo_rewards(const at::Tensor& log_probabilities_P, const CpoOptions& options) {
  if (options.alpha == 0.0) return log_probabilities_P;
  return (1 - at::exp(-options.alpha * log_probabilities_P)) / options.alpha;
}

at::Tensor cpo(const CpoLoss& loss,
               const at::Tensor& chosen_P,
               const at::Tensor& rejected_P,
               const CpoOptions& options) {
  return loss.losses(cpo_rewards(chosen_P, options) - cpo_rewards(rejected_P, options), options);
}

at::Tensor log_odds_ratios(const at::Tensor& chosen_P, const at::Tensor& rejected_P) {
  return (chosen_P - rejected_P) - (log1m_exp(chosen_P) - log1m_exp(rejected_P));
}

at::Tensor orpo(const at::Tensor& chosen_P, const at::Tensor& rejected_P, double beta) {
  return -beta * log_sigmoid_of(log_odds_ratios(chosen_P, rejected_P));
}

}  // namespace tessera::losses
