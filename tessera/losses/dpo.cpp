// SPDX-License-Identifier: Apache-2.0
#include "tessera/losses/dpo.h"

#include <cmath>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/losses/log_probabilities.h"

namespace tessera::losses {
namespace {

/// For larger exponents exp overflows in fp32.
constexpr double kLargestExponent = 80.0;

at::Tensor reverse_kl(const at::Tensor& ratios, double /*alpha*/) {
  return ratios;
}
at::Tensor forward_kl(const at::Tensor& ratios, double /*alpha*/) {
  return 1 - at::exp(-ratios);
}
at::Tensor jensen_shannon(const at::Tensor& ratios, double /*alpha*/) {
  return std::log(2.0) + log_sigmoid_of(ratios);
}
at::Tensor alpha_divergence(const at::Tensor& ratios, double alpha) {
  if (std::abs(alpha - 1) < 1e-6) return ratios;  // the limit
  return (at::exp(((alpha - 1) * ratios).clamp_max(kLargestExponent)) - 1) / (alpha - 1);
}

}  // namespace

Registry<PairLoss>& pair_losses() {
  static Registry<PairLoss> registry("loss of pairs");
  return registry;
}

const Registry<Divergence>& divergences() {
  static const Registry<Divergence> registry = [] {
    Registry<Divergence> out("divergence");
    out.add("reverse_kl", {reverse_kl, "l"});
    out.add("forward_kl", {forward_kl, "1 - e^-l"});
    out.add("js_divergence", {jensen_shannon, "log 2 + log s(l)"});
    out.add("alpha_divergence", {alpha_divergence, "(e^((a - 1) l) - 1) / (a - 1)"});
    return out;
  }();
  return registry;
}

PairScores pair_scores(const PairLogProbabilities& of, const Divergence& divergence, double alpha) {
  for (const at::Tensor* tensor : {&of.rejected_P,
                                   &of.reference_chosen_P,
                                   &of.reference_rejected_P,
                                   &of.chosen_tokens_P,
                                   &of.rejected_tokens_P}) {
    TESSERA_REQUIRE(tensor->sizes() == of.chosen_P.sizes(),
                    Shape,
                    "the log-probabilities of chosen and rejected completions have other sizes",
                    "give one number for each pair");
  }
  PairScores out;
  out.chosen_ratios_P = of.chosen_P - of.reference_chosen_P;
  out.rejected_ratios_P = of.rejected_P - of.reference_rejected_P;
  out.chosen_scores_P = divergence.score(out.chosen_ratios_P, alpha);
  out.rejected_scores_P = divergence.score(out.rejected_ratios_P, alpha);
  out.policy_margins_P = of.chosen_P - of.rejected_P;
  out.reference_margins_P = of.reference_chosen_P - of.reference_rejected_P;
  out.chosen_tokens_P = of.chosen_tokens_P;
  out.rejected_tokens_P = of.rejected_tokens_P;
  out.chosen_P = of.chosen_unweighted_P.defined() ? of.chosen_unweighted_P : of.chosen_P;
  return out;
}

at::Tensor tail_weights(const at::Tensor& mask_PT,
                        const at::Tensor& shared_P,
                        double alpha,
                        const at::Tensor& like) {
  const at::Tensor counts_PT = mask_PT.ne(0), place_PT = counts_PT.cumsum(1);
  const at::Tensor one = at::ones({}, like.options());
  const at::Tensor weight_PT = at::where(place_PT.le(shared_P.unsqueeze(1)), one, one * alpha);
  return at::where(counts_PT, weight_PT, at::zeros({}, like.options()));
}

at::Tensor on_policy_weights(const at::Tensor& log_probabilities_PT,
                             const at::Tensor& log_sums_of_squares_PT,
                             const at::Tensor& mask_PT) {
  return masked_means(log_probabilities_PT.detach() - log_sums_of_squares_PT.detach(), mask_PT)
      .exp();
}

at::Tensor smoothed_logistic(const at::Tensor& x, double label_smoothing) {
  const at::Tensor right = -log_sigmoid_of(x);
  if (label_smoothing == 0.0) return right;
  return (1 - label_smoothing) * right - label_smoothing * log_sigmoid_of(-x);
}

std::string smoothed_logistic_formula(const std::string& x, double label_smoothing) {
  const std::string right = fmt::format("-log s({})", x);
  if (label_smoothing == 0.0) return right;
  const std::string e = text::number(label_smoothing);
  return fmt::format("(1 - {}) ({}) - {} log s(-({}))", e, right, e, x);
}

}  // namespace tessera::losses
