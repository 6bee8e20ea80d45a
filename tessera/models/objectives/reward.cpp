// SPDX-License-Identifier: Apache-2.0
// A reward model: the final norm and a head with one output, which scores each sequence of a pair
// from the hidden state of its last token (losses/reward.h). Parameters are those of Hugging Face's
// ...ForSequenceClassification with one label.
#include "tessera/losses/reward.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "tessera/models/objective.h"
#include "tessera/models/objectives/head.h"
#include "tessera/models/objectives/preference_pairs.h"
#include "tessera/models/objectives/text_head.h"
#include "tessera/nn/functional.h"

// Legend: B pairs, T tokens, C embed.
namespace tessera::models {
namespace {

struct RewardOptions {
  double centering = 0.0;
  bool tokens = false;
  void describe(config::Fields& fields) {
    fields.field("tokens",
                 tokens,
                 {.text = "Compare the scores of all tokens behind the first difference, as "
                          "DeepSpeed-Chat does, instead of those of the last tokens."});
    fields.field(
        "centering",
        centering,
        {.text = "Weight of the squared sum of a pair's scores, which keeps the mean score at 0.",
         .min = 0});
  }
};

class Reward final : public nn::Objective {
 public:
  Reward(TrunkOutput trunk, RewardOptions options)
      : trunk_(std::move(trunk)),
        options_(options),
        norm_(trunk_.norm),
        head_(trunk_.heads.sample, /*outputs=*/1) {}

  void declare(nn::Params& params) override {
    norm_.declare(params, trunk_.norm_name, trunk_.hidden_size, kGlobalName);
    head_.declare(params, trunk_);
  }

  [[nodiscard]] bool works_by_token() const override { return !options_.tokens; }

  nn::Outcome forward(nn::Flow in, const nn::Batch& batch, nn::StepContext& context) override {
    require_no_generation(context, "reward");
    const at::Tensor& x_BTC = in.diff.at(0);
    if (options_.tokens) return of_tokens(x_BTC, batch, context);
    const auto scores = [&](const at::Tensor& positions_B) {
      const at::Tensor x_B1C = norm_(nn::select_tokens(x_BTC, positions_B, context), context);
      const at::Tensor scores_B11 = head_(nn::gather_flow(x_B1C, context), context);
      return nn::shared_gradient(scores_B11, context).flatten().to(at::kDouble);
    };
    const at::Tensor chosen_B = scores(batch.tensor("second_text") - 1),
                     rejected_B = scores(last_tokens(batch, context));
    const at::Tensor margin_B =
        batch.has("margin") ? batch.tensor("margin").to(at::kDouble) : at::Tensor();
    nn::Outcome out;
    out.terms.push_back(
        {.name = "loss",
         .sum = losses::pairwise_reward(chosen_B, rejected_B, margin_B, options_.centering).sum()});
    add_reward_metrics(out, chosen_B.detach(), rejected_B.detach());
    return out;
  }

  [[nodiscard]] std::vector<double> denominators(const nn::Batch& batch) const override {
    return {static_cast<double>(batch.size())};
  }

 private:
  /// The batch has "ends" and "compared" (tasks/preference_pairs.h): the second sequence has the
  /// same number of positions as the first.
  nn::Outcome of_tokens(const at::Tensor& x_BTC, const nn::Batch& batch, nn::StepContext& context) {
    const at::Tensor scores_BT =
        head_(nn::gather_flow(norm_(x_BTC, context), context), context).squeeze(-1).to(at::kDouble);
    const at::Tensor &second_B = batch.tensor("second_text"), &ends_B2 = batch.tensor("ends"),
                     &compared_B2 = batch.tensor("compared");
    const std::int64_t T = scores_BT.size(1);
    // Beyond the sequences the places do not count.
    const at::Tensor places_BT =
        (at::arange(T, second_B.options()).unsqueeze(0) + second_B.unsqueeze(1)).clamp_max(T - 1);
    const at::Tensor rejected_BT = scores_BT.gather(1, places_BT);
    nn::Outcome out;
    out.terms.push_back({.name = "loss",
                         .sum = losses::tokenwise_reward(scores_BT,
                                                         rejected_BT,
                                                         {.begin_P = compared_B2.select(1, 0),
                                                          .end_P = compared_B2.select(1, 1),
                                                          .chosen_end_P = ends_B2.select(1, 0),
                                                          .rejected_end_P = ends_B2.select(1, 1)})
                                    .sum()});
    const auto last_score = [&](const at::Tensor& of_BT, int which) {
      return of_BT.detach().gather(1, ends_B2.narrow(1, which, 1) - 1).squeeze(1);
    };
    add_reward_metrics(out, last_score(scores_BT, 0), last_score(rejected_BT, 1));
    return out;
  }

  TrunkOutput trunk_;
  RewardOptions options_;
  Norm norm_;
  Head head_;
};

std::vector<std::string> reward_formula(const json::Value& written) {
  const auto options = valid_options<RewardOptions>(written);
  if (!options) return {};
  return {"loss = the mean over pairs of " +
          (options->tokens ? losses::tokenwise_reward_formula()
                           : losses::pairwise_reward_formula(options->centering))};
}

nn::BlockSpec make_reward(const TrunkOutput& trunk,
                          const json::Value& options,
                          config::Problems& problems,
                          config::Origins& origins) {
  require_decoder(trunk, "reward");
  RewardOptions read;
  config::read(options, read, problems, origins);
  return {"head", [trunk, read] { return std::make_unique<Reward>(trunk, read); }};
}

TESSERA_OBJECTIVE("reward", make_reward);
TESSERA_OBJECTIVE_FORMULA("reward", reward, reward_formula);
TESSERA_OBJECTIVE_KEPT_AS("reward",
                          reward,
                          {.name = "sequence_classification",
                           .options = json::Value::object({{"num_labels", json::Value::integer(1)},
                                                           {"problem_type",
                                                            json::Value::string("regression")}})});

}  // namespace
}  // namespace tessera::models
