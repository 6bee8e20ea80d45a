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
#include "tessera/models/objectives/paired_texts.h"
#include "tessera/models/objectives/text_head.h"
#include "tessera/nn/functional.h"

// Legend: B pairs, T tokens, C embed.
namespace tessera::models {
namespace {

struct RewardOptions {
  double centering = 0.0;
  void describe(config::Fields& fields) {
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

  [[nodiscard]] bool works_by_token() const override { return true; }

  nn::Outcome forward(nn::Flow in, const nn::Batch& batch, nn::StepContext& context) override {
    require_no_generation(context, "reward");
    const at::Tensor& x_BTC = in.diff.at(0);
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
  TrunkOutput trunk_;
  RewardOptions options_;
  Norm norm_;
  Head head_;
};

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
TESSERA_OBJECTIVE_KEPT_AS("reward",
                          reward,
                          {.name = "sequence_classification",
                           .options = json::Value::object({{"num_labels", json::Value::integer(1)},
                                                           {"problem_type",
                                                            json::Value::string("regression")}})});

}  // namespace
}  // namespace tessera::models
