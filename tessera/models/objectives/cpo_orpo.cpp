// SPDX-License-Identifier: Apache-2.0
// Preferences without a reference (losses/cpo_orpo.h): CPO, SimPO and AlphaPO (cpo), and
// ORPO (orpo). Both add the cross-entropy of the chosen completion.
#include "tessera/losses/cpo_orpo.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/text.h"
#include "tessera/models/objective.h"
#include "tessera/models/objectives/preference_pairs.h"
#include "tessera/models/objectives/text_head.h"

// Legend: B pairs, T tokens.
namespace tessera::models {
namespace {

struct LikelihoodSums {
  PairSums log_probabilities;
  PairSums means;  ///< means over the tokens of each completion
};

/// The parts that both objectives share: the head, and the two terms of the loss.
class LikelihoodObjective : public nn::Objective {
 public:
  /// `whole_text`: the cross-entropy covers the chosen sequence instead of only its completion.
  LikelihoodObjective(TrunkOutput trunk, double likelihood_weight, bool whole_text)
      : head_(std::move(trunk)), likelihood_weight_(likelihood_weight), whole_text_(whole_text) {}

  void declare(nn::Params& params) override { head_.declare(params); }
  [[nodiscard]] bool works_by_token() const override { return true; }
  [[nodiscard]] bool reads_whole_samples() const override { return true; }

  nn::Outcome forward(nn::Flow in, const nn::Batch& batch, nn::StepContext& context) override {
    if (TextHead::generating(context)) return head_.generated(in.diff.at(0), context);
    const PreferencePairs texts(batch);
    const at::Tensor& learned_BT = learned(texts);
    const at::Tensor values_BT =
        head_
            .log_probabilities(head_.states(in.diff.at(0), context),
                               texts.labels(batch, texts.second_BT.logical_or(learned_BT)),
                               context)
            .values_BT;
    LikelihoodSums sums{pair_sums(texts, values_BT), {}};
    sums.means = {sums.log_probabilities.first_B / texts.first_tokens_B.clamp_min(1),
                  sums.log_probabilities.second_B / texts.second_tokens_B.clamp_min(1)};
    nn::Outcome out;
    out.terms.push_back({.name = "loss", .sum = losses(sums).sum()});
    if (likelihood_weight_ != 0.0) {
      out.terms.push_back(
          {.name = "loss/likelihood",
           .sum = -at::where(learned_BT, values_BT, at::zeros({}, values_BT.options())).sum(),
           .denominator = 1,
           .weight = likelihood_weight_});
    }
    const PairSums of_rewards = rewards(sums);
    add_reward_metrics(out, of_rewards.first_B.detach(), of_rewards.second_B.detach());
    add_metric(out, "logps/chosen", sums.log_probabilities.first_B);
    add_metric(out, "logps/rejected", sums.log_probabilities.second_B);
    return out;
  }

  [[nodiscard]] std::vector<double> denominators(const nn::Batch& batch) const override {
    const PreferencePairs texts(batch);
    return {static_cast<double>(batch.size()), total(learned(texts))};
  }
  [[nodiscard]] std::int64_t samples_at_once(const nn::Batch& batch) const override {
    return head_.samples_at_once(batch.tensor("labels").size(1));
  }

 protected:
  /// The loss of each pair.
  [[nodiscard]] virtual at::Tensor losses(const LikelihoodSums& sums) const = 0;
  [[nodiscard]] virtual PairSums rewards(const LikelihoodSums& sums) const = 0;

 private:
  [[nodiscard]] const at::Tensor& learned(const PreferencePairs& texts) const {
    return whole_text_ ? texts.first_text_BT : texts.first_BT;
  }

  TextHead head_;
  double likelihood_weight_;
  bool whole_text_;
};

void describe_beta(double& beta, config::Fields& fields) {
  fields.field(
      "beta",
      beta,
      {.text = "Factor of differences of log-probabilities.", .min = 0, .above_min = true});
}

struct CpoSettings {
  std::string type = "sigmoid";
  losses::CpoOptions of;
  std::optional<double> likelihood_weight;
  [[nodiscard]] double weight_of_likelihood() const {
    return likelihood_weight.value_or(type == "simpo" ? 0 : 1);
  }
  void describe(config::Fields& fields) {
    fields.field("type",
                 type,
                 {.text = "Loss of a pair; simpo and ipo use means over tokens.",
                  .choices = losses::cpo_losses().names()});
    describe_beta(of.beta, fields);
    fields.field("label_smoothing",
                 of.label_smoothing,
                 {.text = "Probability that the two completions of a pair are swapped.",
                  .min = 0,
                  .max = 1});
    fields.field("gamma", of.gamma, {.text = "Target margin of simpo.", .min = 0});
    fields.field("alpha",
                 of.alpha,
                 {.text = "AlphaPO's exponent: rewards are (1 - p^-alpha) / alpha; 0: log p."});
    fields.field("likelihood_weight",
                 likelihood_weight,
                 {.text = "Weight of the cross-entropy of the chosen completion.",
                  .min = 0,
                  .default_text = "1; 0 with simpo"});
  }
};

class Cpo final : public LikelihoodObjective {
 public:
  Cpo(TrunkOutput trunk, const CpoSettings& settings)
      : LikelihoodObjective(std::move(trunk),
                            settings.weight_of_likelihood(),
                            /*whole_text=*/false),
        loss_(losses::cpo_losses().get(settings.type)),
        options_(settings.of) {}

 protected:
  [[nodiscard]] at::Tensor losses(const LikelihoodSums& sums) const override {
    const PairSums& read = loss_.of_means ? sums.means : sums.log_probabilities;
    return losses::cpo(loss_, read.first_B, read.second_B, options_);
  }
  [[nodiscard]] PairSums rewards(const LikelihoodSums& sums) const override {
    const PairSums& read = loss_.of_means ? sums.means : sums.log_probabilities;
    return {options_.beta * losses::cpo_rewards(read.first_B, options_),
            options_.beta * losses::cpo_rewards(read.second_B, options_)};
  }

 private:
  const losses::CpoLoss& loss_;
  losses::CpoOptions options_;
};

struct OrpoSettings {
  double beta = 0.1;
  void describe(config::Fields& fields) { describe_beta(beta, fields); }
};

class Orpo final : public LikelihoodObjective {
 public:
  Orpo(TrunkOutput trunk, OrpoSettings settings)
      : LikelihoodObjective(std::move(trunk), 1.0, /*whole_text=*/true), beta_(settings.beta) {}

 protected:
  [[nodiscard]] at::Tensor losses(const LikelihoodSums& sums) const override {
    return losses::orpo(sums.means.first_B, sums.means.second_B, beta_);
  }
  [[nodiscard]] PairSums rewards(const LikelihoodSums& sums) const override {
    return {beta_ * sums.means.first_B, beta_ * sums.means.second_B};
  }

 private:
  double beta_;
};

std::vector<std::string> cpo_formula(const json::Value& written) {
  const auto settings = valid_options<CpoSettings>(written);
  if (!settings) return {};
  const losses::CpoLoss& loss = losses::cpo_losses().get(settings->type);
  std::string sum = "loss = the mean over pairs of " + loss.formula(settings->of);
  if (const double weight = settings->weight_of_likelihood(); weight != 0.0) {
    sum += fmt::format(" + {} x the mean over tokens of -log p of the chosen completion",
                       text::number(weight));
  }
  const std::string alpha = text::number(settings->of.alpha);
  return {sum,
          settings->of.alpha == 0.0
              ? std::string("m = log p(chosen) - log p(rejected)")
              : fmt::format("m = (p(rejected)^-{0} - p(chosen)^-{0}) / {0}", alpha),
          loss.of_means ? "log p is the mean over the tokens of a completion"
                        : "log p is the sum over the tokens of a completion"};
}

std::vector<std::string> orpo_formula(const json::Value& written) {
  const auto settings = valid_options<OrpoSettings>(written);
  if (!settings) return {};
  return {
      fmt::format("loss = the mean over pairs of -{} log s(log(odds(chosen) / odds(rejected))) + "
                  "the mean over tokens of -log p of the chosen text",
                  text::number(settings->beta)),
      "odds = p / (1 - p), where log p is the mean over the tokens of a completion, s the "
      "logistic function"};
}

template <class ObjectiveT, class Settings>
nn::BlockSpec make_likelihood(const char* name,
                              const TrunkOutput& trunk,
                              const json::Value& options,
                              config::Problems& problems,
                              config::Origins& origins) {
  require_decoder(trunk, name);
  Settings read;
  config::read(options, read, problems, origins);
  return {"head", [trunk, read] { return std::make_unique<ObjectiveT>(trunk, read); }};
}

nn::BlockSpec make_cpo(const TrunkOutput& trunk,
                       const json::Value& options,
                       config::Problems& problems,
                       config::Origins& origins) {
  return make_likelihood<Cpo, CpoSettings>("cpo", trunk, options, problems, origins);
}
nn::BlockSpec make_orpo(const TrunkOutput& trunk,
                        const json::Value& options,
                        config::Problems& problems,
                        config::Origins& origins) {
  return make_likelihood<Orpo, OrpoSettings>("orpo", trunk, options, problems, origins);
}

TESSERA_OBJECTIVE("cpo", make_cpo);
TESSERA_OBJECTIVE("orpo", make_orpo);
TESSERA_OBJECTIVE_FORMULA("cpo", cpo, cpo_formula);
TESSERA_OBJECTIVE_FORMULA("orpo", orpo, orpo_formula);
TESSERA_OBJECTIVE_KEPT_AS("cpo", cpo, {.name = "causal_lm"});
TESSERA_OBJECTIVE_KEPT_AS("orpo", orpo, {.name = "causal_lm"});

}  // namespace
}  // namespace tessera::models
