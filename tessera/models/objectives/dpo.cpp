// SPDX-License-Identifier: Apache-2.0
// Direct preference optimisation and its variants (losses/dpo.h): a decoder learns to prefer the
// chosen completion of each pair to the rejected one, and to stay close to its initial state.
#include "tessera/losses/dpo.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/models/objective.h"
#include "tessera/models/objectives/preference_pairs.h"
#include "tessera/models/objectives/text_head.h"

// Legend: B pairs, T tokens.
namespace tessera::models {
namespace {

struct PreferenceOptions {
  std::vector<std::string> type = {"sigmoid"};
  std::vector<double> weights;
  losses::PairOptions of;
  std::string divergence = "reverse_kl";
  double divergence_alpha = 1.0, tail_alpha = 1.0;
  bool reference_free = false, on_policy_weights = false;

  void describe(config::Fields& fields) {
    fields.field(
        "type", type, {.text = "Names of the losses of a pair, which are added.", .choices = {}});
    fields.field(
        "weights", weights, {.text = "Weight of each of the losses.", .default_text = "1 each"});
    fields.field("beta",
                 of.beta,
                 {.text = "Strength of the penalty for deviating from the reference.",
                  .min = 0,
                  .above_min = true});
    fields.field("label_smoothing",
                 of.label_smoothing,
                 {.text = "Probability that the two completions of a pair are swapped.",
                  .min = 0,
                  .max = 1});
    fields.field(
        "discopop_tau",
        of.discopop_tau,
        {.text = "Temperature of the blend of the loss discopop.", .min = 0, .above_min = true});
    fields.field("divergence",
                 divergence,
                 {.text = "Divergence from the reference; its derivative gives the scores.",
                  .choices = losses::divergences().names()});
    fields.field(
        "divergence_alpha", divergence_alpha, {.text = "The order of the alpha divergence."});
    fields.field("tail_alpha",
                 tail_alpha,
                 {.text = "Weight of tokens beyond the length of the shorter completion.",
                  .min = 0,
                  .max = 1});
    fields.field(
        "on_policy_weights",
        on_policy_weights,
        {.text = "Weight each pair by the probability of its completions under the model."});
    fields.field("reference_free",
                 reference_free,
                 {.text = "Use a reference under which all completions are equally probable."});
  }
};

class Preference final : public nn::Objective {
 public:
  Preference(TrunkOutput trunk, PreferenceOptions options)
      : head_(std::move(trunk)), options_(std::move(options)) {
    for (const std::string& name : options_.type)
      losses_.push_back(&losses::pair_losses().get(name));
  }

  void declare(nn::Params& params) override { head_.declare(params); }
  [[nodiscard]] bool works_by_token() const override { return true; }
  [[nodiscard]] bool reads_whole_samples() const override { return true; }

  nn::Outcome forward(nn::Flow in, const nn::Batch& batch, nn::StepContext& context) override {
    if (TextHead::generating(context)) return head_.generated(in.diff.at(0), context);
    const PreferencePairs texts(batch);
    const nn::TokenLogProbabilities tokens =
        head_.log_probabilities(head_.states(in.diff.at(0), context),
                                texts.labels(batch, texts.first_BT | texts.second_BT),
                                context,
                                {.squares = options_.on_policy_weights});
    const PairSums policy = pair_sums(texts, tokens.values_BT, options_.tail_alpha);
    if (!context.training() && !options_.reference_free && !batch.has("reference"))
      return {.outputs = {{"reference", at::stack({policy.first_B, policy.second_B}, 1)}}};

    const at::Tensor none_B = at::zeros_like(policy.first_B.detach());
    const PairSums reference =
        options_.reference_free ? PairSums{none_B, none_B} : reference_of(batch);
    at::Tensor unweighted_B;
    if (options_.tail_alpha != 1.0) unweighted_B = pair_sums(texts, tokens.values_BT).first_B;
    const losses::PairScores scores =
        losses::pair_scores({.chosen_P = policy.first_B,
                             .rejected_P = policy.second_B,
                             .reference_chosen_P = reference.first_B,
                             .reference_rejected_P = reference.second_B,
                             .chosen_tokens_P = texts.first_tokens_B,
                             .rejected_tokens_P = texts.second_tokens_B,
                             .chosen_unweighted_P = unweighted_B},
                            losses::divergences().get(options_.divergence),
                            options_.divergence_alpha);
    nn::Outcome out;
    add_losses(out, scores, weights_of(tokens, texts));
    add_reward_metrics(out,
                       options_.of.beta * scores.chosen_ratios_P,
                       options_.of.beta * scores.rejected_ratios_P);
    add_metric(out, "logps/chosen", policy.first_B);
    add_metric(out, "logps/rejected", policy.second_B);
    return out;
  }

  /// The numbers of pairs, and of tokens of chosen completions.
  [[nodiscard]] std::vector<double> denominators(const nn::Batch& batch) const override {
    return {static_cast<double>(batch.size()), total(PreferencePairs(batch).first_tokens_B)};
  }
  [[nodiscard]] std::int64_t samples_at_once(const nn::Batch& batch) const override {
    for (const losses::PairLoss* loss : losses_) {
      if (loss->reads_batch) return 0;
    }
    return head_.samples_at_once(batch.tensor("labels").size(1));
  }

 private:
  /// The weight of each pair; undefined: 1.
  [[nodiscard]] at::Tensor weights_of(const nn::TokenLogProbabilities& tokens,
                                      const PreferencePairs& texts) const {
    if (!options_.on_policy_weights) return {};
    const auto weights = [&](const at::Tensor& mask_BT) {
      return losses::on_policy_weights(tokens.values_BT, tokens.log_sums_of_squares_BT, mask_BT);
    };
    return weights(texts.first_BT) * weights(texts.second_BT);
  }

  void add_losses(nn::Outcome& out,
                  const losses::PairScores& scores,
                  const at::Tensor& weights_B) const {
    at::Tensor of_pairs, of_tokens;
    for (std::size_t i = 0; i < losses_.size(); ++i) {
      at::Tensor each_B = losses_[i]->losses(scores, options_.of);
      if (weights_B.defined()) each_B = each_B * weights_B;
      if (!options_.weights.empty()) each_B = each_B * options_.weights[i];
      at::Tensor& sum = losses_[i]->over_tokens ? of_tokens : of_pairs;
      sum = sum.defined() ? sum + each_B.sum() : each_B.sum();
    }
    out.terms.push_back({.name = "loss", .sum = of_pairs});
    if (of_tokens.defined())
      out.terms.push_back({.name = "loss/sft", .sum = of_tokens, .denominator = 1});
  }

  TextHead head_;
  PreferenceOptions options_;
  std::vector<const losses::PairLoss*> losses_;
};

void check(const PreferenceOptions& options,
           config::Problems& problems,
           const config::Origins& origins) {
  const auto wrong = [&](const char* key, std::string what, std::string fix) {
    problems.add(origins.place(key), key, std::move(what), std::move(fix));
  };
  const std::vector<std::string> known = losses::pair_losses().names();
  bool of_pairs = false;
  for (const std::string& name : options.type) {
    if (!losses::pair_losses().has(name)) {
      wrong(
          "type", fmt::format("unknown loss of pairs \"{}\"", name), text::suggestion(name, known));
      return;
    }
    const losses::PairLoss& loss = losses::pair_losses().get(name);
    of_pairs |= !loss.over_tokens;
    if (loss.needs_smoothing &&
        (options.of.label_smoothing <= 0 || options.of.label_smoothing >= 1)) {
      wrong("label_smoothing",
            fmt::format("the loss {} needs a label smoothing between 0 and 1, and it is {}",
                        name,
                        options.of.label_smoothing),
            "set label_smoothing to 0.001, say");
    }
    if (name == "robust" && options.of.label_smoothing >= 0.5) {
      wrong("label_smoothing",
            fmt::format("the loss robust needs a label smoothing below 0.5, and it is {}",
                        options.of.label_smoothing),
            "lower label_smoothing");
    }
  }
  if (!of_pairs)
    wrong(
        "type", "no loss compares the texts of a pair", "add sigmoid, or train with the task sft");
  if (!options.weights.empty() && options.weights.size() != options.type.size()) {
    wrong("weights",
          fmt::format("{} weights for {} losses", options.weights.size(), options.type.size()),
          "give each loss a weight, or none");
  }
}

std::vector<std::string> preference_formula(const json::Value& written) {
  const auto options = valid_options<PreferenceOptions>(written);
  if (!options) return {};
  config::Problems problems;
  check(*options, problems, {});
  if (!problems.empty()) return {};
  std::vector<std::string> pairs, tokens;
  for (std::size_t i = 0; i < options->type.size(); ++i) {
    const losses::PairLoss& loss = losses::pair_losses().get(options->type[i]);
    const std::string formula = loss.formula(options->of);
    const double weight = options->weights.empty() ? 1.0 : options->weights[i];
    (loss.over_tokens ? tokens : pairs)
        .push_back(weight == 1.0 ? formula : fmt::format("{} ({})", text::number(weight), formula));
  }
  std::string sum = fmt::format("loss = the mean over pairs of {}{}",
                                options->on_policy_weights ? "w x " : "",
                                text::join(pairs, " + "));
  if (!tokens.empty()) sum += " + the mean over tokens of " + text::join(tokens, " + ");
  std::vector<std::string> out = {
      sum,
      losses::kPairSymbols,
      fmt::format("score of a ratio l: {} (divergence {})",
                  losses::divergences().get(options->divergence).formula,
                  options->divergence)};
  if (options->divergence == "alpha_divergence")
    out.back() += ", a = " + text::number(options->divergence_alpha);
  if (options->reference_free)
    out.emplace_back("the reference gives every completion the same probability");
  if (options->tail_alpha != 1.0) {
    out.push_back(fmt::format("tokens beyond the length of the shorter completion count {}",
                              text::number(options->tail_alpha)));
  }
  if (options->on_policy_weights) {
    out.emplace_back(
        "w = e^(the mean over tokens of log p - log(the sum of p^2)) of both completions");
  }
  return out;
}

nn::BlockSpec make_preference(const TrunkOutput& trunk,
                              const json::Value& options,
                              config::Problems& problems,
                              config::Origins& origins) {
  require_decoder(trunk, "preference");
  PreferenceOptions read;
  config::read(options, read, problems, origins);
  check(read, problems, origins);
  return {"head", [trunk, read] { return std::make_unique<Preference>(trunk, read); }};
}

TESSERA_OBJECTIVE("preference", make_preference);
TESSERA_OBJECTIVE_FORMULA("preference", preference, preference_formula);
TESSERA_OBJECTIVE_KEPT_AS("preference", preference, {.name = "causal_lm"});

}  // namespace
}  // namespace tessera::models
