// SPDX-License-Identifier: Apache-2.0
// Preferences without pairs (losses/kto.h): completions labelled as desirable or undesirable. The
// second sequence of a sample is another sample's completion after this sample's prompt.
#include "tessera/losses/kto.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/text.h"
#include "tessera/models/objective.h"
#include "tessera/models/objectives/preference_pairs.h"
#include "tessera/models/objectives/text_head.h"

// Legend: B samples, T tokens.
namespace tessera::models {
namespace {

struct KtoSettings {
  std::string type = "kto";
  losses::KtoOptions of;
  void describe(config::Fields& fields) {
    fields.field("type",
                 type,
                 {.text = "The loss of a completion.", .choices = losses::kto_losses().names()});
    fields.field("beta",
                 of.beta,
                 {.text = "Strength of the penalty for deviating from the reference.",
                  .min = 0,
                  .above_min = true});
    fields.field("desirable_weight",
                 of.desirable_weight,
                 {.text = "Weight of desirable completions.", .min = 0});
    fields.field("undesirable_weight",
                 of.undesirable_weight,
                 {.text = "Weight of undesirable completions.", .min = 0});
  }
};

class Kto final : public nn::Objective {
 public:
  Kto(TrunkOutput trunk, const KtoSettings& settings)
      : head_(std::move(trunk)),
        loss_(losses::kto_losses().get(settings.type)),
        options_(settings.of) {}

  void declare(nn::Params& params) override { head_.declare(params); }
  [[nodiscard]] bool works_by_token() const override { return true; }
  [[nodiscard]] bool reads_whole_samples() const override { return true; }

  nn::Outcome forward(nn::Flow in, const nn::Batch& batch, nn::StepContext& context) override {
    if (TextHead::generating(context)) return head_.generated(in.diff.at(0), context);
    const PreferencePairs texts(batch);
    const at::Tensor values_BT =
        head_
            .log_probabilities(head_.states(in.diff.at(0), context),
                               texts.labels(batch, texts.first_BT | texts.second_BT),
                               context)
            .values_BT;
    const PairSums policy = pair_sums(texts, values_BT);
    if (!context.training() && !batch.has("reference"))
      return {.outputs = {{"reference", at::stack({policy.first_B, policy.second_B}, 1)}}};

    const PairSums reference = reference_of(batch);
    const at::Tensor wanted_B = batch.tensor("wanted").ne(0);
    const at::Tensor ratios_B = policy.first_B - reference.first_B;
    const at::Tensor divergence = losses::kto_divergence(policy.second_B - reference.second_B);
    nn::Outcome out;
    out.terms.push_back(
        {.name = "loss",
         .sum = losses::kto(loss_, ratios_B, wanted_B, divergence, options_).sum()});
    const at::Tensor rewards_B = options_.beta * ratios_B.detach();
    const at::Tensor zero = at::zeros({}, rewards_B.options());
    add_metric(out, "rewards/chosen", at::where(wanted_B, rewards_B, zero), 1);
    add_metric(out, "rewards/rejected", at::where(wanted_B, zero, rewards_B), 2);
    add_metric(out, "kl", divergence * static_cast<double>(batch.size()));
    return out;
  }

  /// The numbers of samples, of desirable samples, and of undesirable ones.
  [[nodiscard]] std::vector<double> denominators(const nn::Batch& batch) const override {
    const auto samples = static_cast<double>(batch.size());
    const double wanted = total(batch.tensor("wanted").ne(0));
    return {samples, wanted, samples - wanted};
  }
  /// All samples, because the divergence is computed over the micro-batch.
  [[nodiscard]] std::int64_t samples_at_once(const nn::Batch& batch) const override {
    return loss_.reads_divergence ? 0 : head_.samples_at_once(batch.tensor("labels").size(1));
  }

 private:
  TextHead head_;
  const losses::KtoLoss& loss_;
  losses::KtoOptions options_;
};

std::vector<std::string> kto_formula(const json::Value& written) {
  const auto settings = valid_options<KtoSettings>(written);
  if (!settings) return {};
  const losses::KtoLoss& loss = losses::kto_losses().get(settings->type);
  std::vector<std::string> out = {
      "loss = the mean over completions of w L, L = " + loss.formula(settings->of.beta),
      fmt::format("w = {} if desirable, {} if not",
                  text::number(settings->of.desirable_weight),
                  text::number(settings->of.undesirable_weight)),
      "l = log(policy / reference) of a completion, s the logistic function"};
  if (loss.reads_divergence)
    out.emplace_back("z = max(0, the mean of l over mismatched completions of the micro-batch)");
  return out;
}

nn::BlockSpec make_kto(const TrunkOutput& trunk,
                       const json::Value& options,
                       config::Problems& problems,
                       config::Origins& origins) {
  require_decoder(trunk, "kto");
  KtoSettings read;
  config::read(options, read, problems, origins);
  return {"head", [trunk, read] { return std::make_unique<Kto>(trunk, read); }};
}

TESSERA_OBJECTIVE("kto", make_kto);
TESSERA_OBJECTIVE_FORMULA("kto", kto, kto_formula);
TESSERA_OBJECTIVE_KEPT_AS("kto", kto, {.name = "causal_lm"});

}  // namespace
}  // namespace tessera::models
