// SPDX-License-Identifier: Apache-2.0
// The loss of a policy from the advantages of the completions that it wrote (losses/policy.h):
// PPO's clipped surrogate as in GRPO and similar algorithms, and the divergence from a reference.
#include "tessera/losses/policy.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/text.h"
#include "tessera/losses/kl.h"
#include "tessera/losses/log_probabilities.h"
#include "tessera/models/objective.h"
#include "tessera/models/objectives/preference_pairs.h"
#include "tessera/models/objectives/text_head.h"
#include "tessera/ops/support.h"

// Legend: B completions with their prompts, T tokens.
namespace tessera::models {
namespace {

struct PolicyObjectiveOptions {
  std::string type = "grpo", ratio = "token", kl_estimator = "k3";
  losses::PolicyOptions of;
  double kl_coefficient = 0.0, temperature = 1.0, entropy_coefficient = 0.0, ptx_coefficient = 0.0;
  ops::Support support;
  std::int64_t longest = 1;
  void describe(config::Fields& fields) {
    fields.field(
        "type", type, {.text = "Name of the loss.", .choices = losses::policy_losses().names()});
    fields.field("ratio",
                 ratio,
                 {.text = "What one ratio is of: a token, the mean of a completion's tokens, or "
                          "their sum.",
                  .choices = {"token", "mean", "sum"}});
    fields.field("epsilon_low", of.epsilon_low, {.text = "The lower clip.", .min = 0});
    fields.field("epsilon_high", of.epsilon_high, {.text = "The upper clip.", .min = 0});
    fields.field("delta", of.delta, {.text = "The largest ratio.", .default_text = "none"});
    fields.field(
        "kl_coefficient", kl_coefficient, {.text = "What the divergence costs.", .min = 0});
    fields.field("kl_estimator",
                 kl_estimator,
                 {.text = "How it is estimated.", .choices = losses::kl_estimators().names()});
    fields.field("temperature",
                 temperature,
                 {.text = "What logits are divided by.", .min = 0, .above_min = true});
    fields.field("top_k", support.top_k, {.text = "Tokens that can be drawn.", .min = 0});
    fields.field("top_p", support.top_p, {.text = "Their share.", .min = 0, .max = 1});
    fields.field("vocabulary", support.vocab, {.text = "Tokens of the tokenizer.", .min = 0});
    fields.field(
        "entropy_coefficient", entropy_coefficient, {.text = "What entropy earns.", .min = 0});
    fields.field(
        "ptx_coefficient",
        ptx_coefficient,
        {.text = "The factor of the loss of pretraining texts; 0: there are none.", .min = 0});
    fields.field("longest", longest, {.text = "The largest length of a completion.", .min = 1});
  }
};

/// The indices of the denominators.
enum : int { kOfLoss, kOfTokens, kOfTexts };

/// The labels of pretraining texts, which have micro-batches of their own.
constexpr const char* kTextLabels = "text_labels";

class Policy final : public nn::Objective {
 public:
  Policy(TrunkOutput trunk, PolicyObjectiveOptions options)
      : head_(std::move(trunk)),
        options_(std::move(options)),
        loss_(losses::policy_losses().get(options_.type)) {
    options_.of.sequence_level = options_.ratio == "mean";
  }

  void declare(nn::Params& params) override { head_.declare(params); }
  [[nodiscard]] std::string grid_obstacle() const override { return "the rollouts of a policy"; }

  nn::Outcome forward(nn::Flow in, const nn::Batch& batch, nn::StepContext& context) override {
    if (TextHead::generating(context)) return head_.generated(in.diff.at(0), context);
    if (batch.has(kTextLabels)) return of_texts(in, batch.tensor(kTextLabels), context);
    const at::Tensor& labels_BT = batch.tensor("labels");
    const bool learns = context.training() || batch.has("advantages");
    const nn::TokenLogProbabilities tokens =
        head_.log_probabilities(head_.states(in.diff.at(0), context),
                                labels_BT,
                                context,
                                {.temperature = options_.temperature,
                                 .support = options_.support,
                                 .entropies = learns && options_.entropy_coefficient > 0});
    const at::Tensor& log_p_BT = tokens.values_BT;
    if (!learns) return {.outputs = {{"log_probabilities", log_p_BT}}};

    // The caller provides the tensor "found" if it wants the log-probabilities.
    if (batch.has("found")) batch.tensor("found").copy_(log_p_BT.detach());
    const at::Tensor mask_BT = labels_BT.ge(0);
    const losses::PolicySample sample{
        .log_probabilities_BT = log_p_BT,
        .old_BT = batch.has("old") ? batch.tensor("old") : at::Tensor(),
        .mask_BT = mask_BT,
        .advantages = batch.tensor("advantages")};
    nn::Outcome out;
    at::Tensor losses_BT, clipped_BT;
    if (options_.ratio == "sum") {
      losses_BT = of_completions(sample, clipped_BT);
    } else {
      const losses::PolicyOutcome made = losses::policy_loss(loss_, sample, options_.of);
      losses_BT = made.losses_BT;
      if (loss_.clips) clipped_BT = made.low_BL.bitwise_or(made.high_BL).expand(mask_BT.sizes());
    }
    at::Tensor kl_BT;
    if (options_.kl_coefficient > 0) {
      kl_BT =
          losses::kl_estimators().get(options_.kl_estimator)(log_p_BT, batch.tensor("reference"));
      losses_BT = losses_BT + options_.kl_coefficient * kl_BT;
    }
    if (tokens.entropies_BT.defined())
      losses_BT = losses_BT - options_.entropy_coefficient * tokens.entropies_BT;
    out.terms.push_back(
        {.name = "loss", .sum = losses::aggregated_sum(loss_.aggregation, losses_BT, mask_BT)});
    const auto over_tokens = [&](const char* name, const at::Tensor& values_BT) {
      add_metric(out,
                 name,
                 at::where(mask_BT, values_BT.detach().to(at::kDouble), at::zeros({}, at::kDouble)),
                 kOfTokens);
    };
    if (kl_BT.defined()) over_tokens("kl", kl_BT);
    if (clipped_BT.defined()) over_tokens("clip_share", clipped_BT);
    if (sample.old_BT.defined()) {
      const at::Tensor apart_BT = log_p_BT.detach() - sample.old_BT;
      over_tokens("moved", at::maximum(apart_BT, -apart_BT));
    }
    return out;
  }

  [[nodiscard]] std::vector<double> denominators(const nn::Batch& batch) const override {
    const bool texts = batch.has(kTextLabels);
    const at::Tensor mask_BT = batch.tensor(texts ? kTextLabels : "labels").ge(0);
    const auto count = [&](losses::Aggregation aggregation) {
      return losses::aggregated_count(aggregation, mask_BT, options_.longest);
    };
    const double tokens = count(losses::Aggregation::TokenMean);
    std::vector<double> out = {texts ? 0.0 : count(loss_.aggregation), texts ? 0.0 : tokens};
    if (options_.ptx_coefficient > 0) out.push_back(texts ? tokens : 0.0);
    return out;
  }
  [[nodiscard]] std::int64_t samples_at_once(const nn::Batch& batch) const override {
    return head_.samples_at_once(
        batch.tensor(batch.has(kTextLabels) ? kTextLabels : "labels").size(1));
  }

 private:
  /// The loss of language modelling, without the temperature and the support of sampling.
  [[nodiscard]] nn::Outcome of_texts(const nn::Flow& in,
                                     const at::Tensor& labels_BT,
                                     nn::StepContext& context) const {
    const nn::TokenLogProbabilities tokens =
        head_.log_probabilities(head_.states(in.diff.at(0), context), labels_BT, context, {});
    nn::Outcome out;
    out.terms.push_back({.name = "ptx",
                         .sum = -tokens.values_BT.sum(),
                         .denominator = kOfTexts,
                         .weight = options_.ptx_coefficient});
    return out;
  }

  /// The clipped surrogate of whole completions, distributed over each one's tokens so that the
  /// mean over completions of token means equals that of completions.
  at::Tensor of_completions(const losses::PolicySample& sample, at::Tensor& clipped_BT) const {
    const at::Tensor log_p_B = losses::masked_sums(sample.log_probabilities_BT, sample.mask_BT);
    const at::Tensor old_B = sample.old_BT.defined()
                                 ? losses::masked_sums(sample.old_BT, sample.mask_BT)
                                 : log_p_B.detach();
    const at::Tensor advantages_B = losses::masked_means(sample.advantages, sample.mask_BT);
    const at::Tensor losses_B = losses::sequence_surrogate(
        log_p_B, old_B, advantages_B, options_.of.epsilon_low, options_.of.epsilon_high);
    const at::Tensor ratios_B = (log_p_B.detach() - old_B).exp();
    clipped_BT =
        ratios_B.lt(1 - options_.of.epsilon_low)
            .bitwise_and(advantages_B.lt(0))
            .bitwise_or(ratios_B.gt(1 + options_.of.epsilon_high).bitwise_and(advantages_B.gt(0)))
            .unsqueeze(1)
            .expand(sample.mask_BT.sizes());
    return losses_B.unsqueeze(1).expand(sample.mask_BT.sizes());
  }

  TextHead head_;
  PolicyObjectiveOptions options_;
  losses::PolicyLoss loss_;
};

std::vector<std::string> policy_formula(const json::Value& written) {
  const auto options = valid_options<PolicyObjectiveOptions>(written);
  if (!options) return {};
  const losses::PolicyLoss& loss = losses::policy_losses().get(options->type);
  losses::PolicyOptions of = options->of;
  if (options->ratio == "sum") of.delta.reset();  // whole completions have no such bound
  std::string each = "L = " + loss.formula(of);
  std::vector<std::string> symbols;
  symbols.emplace_back(options->ratio == "token" ? "rho = p / p_old of the token"
                       : options->ratio == "mean"
                           ? "rho = e^(the mean over the completion's tokens "
                             "of log p - log p_old)"
                           : "rho = p / p_old of the whole completion");
  if (options->kl_coefficient > 0) {
    each += fmt::format(" + {} KL", text::number(options->kl_coefficient));
    symbols.push_back(fmt::format("KL = {} ({}), d = log p - log p_ref of the token",
                                  losses::kl_estimators().get(options->kl_estimator).formula,
                                  options->kl_estimator));
  }
  if (options->entropy_coefficient > 0) {
    each += fmt::format(" - {} H", text::number(options->entropy_coefficient));
    symbols.emplace_back("H = the entropy of p at the token");
  }
  std::string drawn = fmt::format("p = softmax(logits / {})", text::number(options->temperature));
  if (options->support.top_k > 0) drawn += fmt::format(", top_k {}", options->support.top_k);
  if (options->support.top_p < 1)
    drawn += fmt::format(", top_p {}", text::number(options->support.top_p));
  symbols.push_back(std::move(drawn));
  std::string sum = "loss = " + losses::aggregation_formula(loss.aggregation, options->longest);
  if (options->ptx_coefficient > 0) {
    sum += fmt::format(" + {} x the mean over the tokens of pretraining texts of -log p",
                       text::number(options->ptx_coefficient));
  }
  std::vector<std::string> out = {std::move(sum), std::move(each)};
  out.insert(out.end(), symbols.begin(), symbols.end());
  return out;
}

nn::BlockSpec make_policy(const TrunkOutput& trunk,
                          const json::Value& options,
                          config::Problems& problems,
                          config::Origins& origins) {
  require_decoder(trunk, "policy");
  PolicyObjectiveOptions read;
  config::read(options, read, problems, origins);
  if (read.ratio == "sum" && read.type != "grpo") {
    problems.add(
        origins.place("type"),
        "type",
        fmt::format("ratios of whole completions are of the loss grpo alone, not of {}", read.type),
        "set rl.loss.type to grpo, or rl.loss.ratio to token");
  }
  if (read.ratio == "mean" && read.type == "vespo") {
    problems.add(origins.place("type"),
                 "type",
                 "the loss vespo has a ratio of its own for each completion",
                 "set rl.loss.ratio to token");
  }
  return {"head", [trunk, read] { return std::make_unique<Policy>(trunk, read); }};
}

TESSERA_OBJECTIVE("policy", make_policy);
TESSERA_OBJECTIVE_FORMULA("policy", policy, policy_formula);
TESSERA_OBJECTIVE_KEPT_AS("policy", policy, {.name = "causal_lm"});

}  // namespace
}  // namespace tessera::models
