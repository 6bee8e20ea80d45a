// SPDX-License-Identifier: Apache-2.0
// Predicts the next token with a weight for the cross-entropy of each token, which has no gradient:
// the model's probability of the token, or the entropy of its likeliest tokens. Sources: Wu et al.
// 2025, "On the generalization of SFT: a reinforcement learning perspective with reward
// rectification" (DFT); entropy-adaptive fine-tuning (EAFT) as in LLaMA-Factory and axolotl.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include "tessera/base/text.h"
#include "tessera/config/choices.h"
#include "tessera/models/objective.h"
#include "tessera/models/objectives/labels.h"
#include "tessera/models/objectives/text_head.h"
#include "tessera/nn/functional.h"

// Legend: B batch, T tokens, V vocabulary, K likeliest tokens.
namespace tessera::models {
namespace {

enum class WeightBy : std::uint8_t { Probability, Entropy };
constexpr auto kWeightBy = std::to_array<config::Named<WeightBy>>(
    {{WeightBy::Probability, "probability"}, {WeightBy::Entropy, "entropy"}});

struct WeightedOptions {
  WeightBy weights = WeightBy::Probability;
  double alpha = 1.0, scale = 3.0;
  std::int64_t top_k = 20;
  void describe(config::Fields& fields) {
    fields.choice("weights", weights, kWeightBy, {.text = "What the weight of a token is."});
    fields.field("alpha", alpha, {.text = "Exponent of the entropy.", .min = 0, .max = 100});
    fields.field(
        "top_k",
        top_k,
        {.text = "Number of the likeliest tokens whose entropy counts.", .min = 1, .max = 1e6});
    fields.field("scale", scale, {.text = "Divisor of the entropy.", .min = 0, .above_min = true});
  }
};

class WeightedTokens final : public nn::Objective {
 public:
  WeightedTokens(TrunkOutput trunk, const WeightedOptions& options)
      : head_(std::move(trunk)), options_(options) {}

  void declare(nn::Params& params) override { head_.declare(params); }
  [[nodiscard]] bool works_by_token() const override { return true; }
  [[nodiscard]] bool reads_whole_samples() const override { return true; }
  [[nodiscard]] std::string grid_obstacle() const override {
    return options_.weights == WeightBy::Entropy ? "weights of tokens by entropy" : "";
  }

  nn::Outcome forward(nn::Flow in, const nn::Batch& batch, nn::StepContext& context) override {
    if (TextHead::generating(context)) return head_.generated(in.diff.at(0), context);
    const at::Tensor states_BTC = head_.states(in.diff.at(0), context);
    if (!batch.has("labels")) return {.outputs = {{"logits", head_.logits(states_BTC, context)}}};
    const at::Tensor values_BT =
        head_.log_probabilities(states_BTC, batch.tensor("labels"), context).values_BT;
    // Evaluation reports the plain cross-entropy.
    const at::Tensor sum = context.training()
                               ? -(values_BT * weights(values_BT, states_BTC, context)).sum()
                               : -values_BT.sum();
    nn::Outcome out = {.terms = {{.name = "loss", .sum = sum}}};
    if (context.want_logits) {
      const at::AutoGradMode no_gradient(false);
      out.outputs["logits"] = head_.logits(states_BTC, context);
    }
    return out;
  }

  [[nodiscard]] std::vector<double> denominators(const nn::Batch& batch) const override {
    return {number_of_labels(batch.tensor("labels"))};
  }
  [[nodiscard]] std::int64_t samples_at_once(const nn::Batch& batch) const override {
    return head_.samples_at_once(batch.tensor("labels").size(1));
  }

 private:
  /// [B, T] fp64, no gradient.
  [[nodiscard]] at::Tensor weights(const at::Tensor& values_BT,
                                   const at::Tensor& states_BTC,
                                   nn::StepContext& context) const {
    const at::AutoGradMode no_gradient(false);
    if (options_.weights == WeightBy::Probability) return values_BT.exp();
    const at::Tensor logits_BTV = head_.logits(states_BTC.detach(), context);
    const std::int64_t likeliest = std::min(options_.top_k, logits_BTV.size(-1));
    const at::Tensor logs_BTK =
        at::log_softmax(std::get<0>(logits_BTV.topk(likeliest, -1)).to(at::kDouble), -1);
    const at::Tensor entropies_BT = -(logs_BTK.exp() * logs_BTK).sum(-1);
    return nn::values_of_samples((entropies_BT / options_.scale).pow(options_.alpha), context);
  }

  TextHead head_;
  WeightedOptions options_;
};

std::vector<std::string> weighted_formula(const json::Value& written) {
  const auto options = valid_options<WeightedOptions>(written);
  if (!options) return {};
  std::vector<std::string> out = {"loss = - the mean over tokens of w log p"};
  out.push_back(options->weights == WeightBy::Probability
                    ? "w = p, without a gradient"
                    : fmt::format("w = (H / {})^{}, H the entropy of the {} likeliest tokens, "
                                  "without a gradient",
                                  text::number(options->scale),
                                  text::number(options->alpha),
                                  options->top_k));
  return out;
}

nn::BlockSpec make_weighted_lm(const TrunkOutput& trunk,
                               const json::Value& options,
                               config::Problems& problems,
                               config::Origins& origins) {
  require_decoder(trunk, "weighted_lm");
  WeightedOptions read;
  config::read(options, read, problems, origins);
  return {"head", [trunk, read] { return std::make_unique<WeightedTokens>(trunk, read); }};
}

TESSERA_OBJECTIVE("weighted_lm", make_weighted_lm);
TESSERA_OBJECTIVE_FORMULA("weighted_lm", weighted_lm, weighted_formula);
TESSERA_OBJECTIVE_KEPT_AS("weighted_lm", weighted_lm, {.name = "causal_lm"});
TESSERA_OBJECTIVE_TRAITS("weighted_lm",
                         weighted_lm,
                         {.predicts = Predicts::NextToken,
                          .has_perplexity = true,
                          .distills = true});

}  // namespace
}  // namespace tessera::models
