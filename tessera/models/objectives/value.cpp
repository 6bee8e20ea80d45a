// SPDX-License-Identifier: Apache-2.0
// A critic: the final norm and a head with one output per token, which predicts the expected reward
// after it (losses/ppo.h). Parameters are those of a reward model, so that a critic can start from
// one.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "tessera/losses/ppo.h"
#include "tessera/models/objective.h"
#include "tessera/models/objectives/head.h"
#include "tessera/models/objectives/text_head.h"
#include "tessera/nn/functional.h"

// Legend: B texts, T tokens.
namespace tessera::models {
namespace {

struct ValueOptions {
  double clip_range = 0.2;
  void describe(config::Fields& fields) {
    fields.field(
        "clip_range",
        clip_range,
        {.text = "How far a value may move from \"old_values\".", .min = 0, .above_min = true});
  }
};

class Value final : public nn::Objective {
 public:
  Value(TrunkOutput trunk, ValueOptions options)
      : trunk_(std::move(trunk)),
        options_(options),
        norm_(trunk_.norm),
        head_(trunk_.heads.sample, /*outputs=*/1) {}

  void declare(nn::Params& params) override {
    norm_.declare(params, trunk_.norm_name, trunk_.hidden_size, kGlobalName);
    head_.declare(params, trunk_);
  }

  nn::Outcome forward(nn::Flow in, const nn::Batch& batch, nn::StepContext& context) override {
    require_no_generation(context, "value");
    const at::Tensor values_BT =
        head_(nn::gather_flow(norm_(in.diff.at(0), context), context), context)
            .squeeze(-1)
            .to(at::kDouble);
    if (!context.training() && !batch.has("returns")) return {.outputs = {{"values", values_BT}}};
    const at::Tensor mask_BT = batch.tensor("labels").ge(0);
    nn::Outcome out;
    out.terms.push_back({.name = "loss",
                         .sum = losses::ppo_critic_loss(values_BT,
                                                        batch.tensor("old_values"),
                                                        batch.tensor("returns"),
                                                        mask_BT,
                                                        options_.clip_range) *
                                mask_BT.sum()});
    return out;
  }

  /// The number of tokens of completions.
  [[nodiscard]] std::vector<double> denominators(const nn::Batch& batch) const override {
    return {static_cast<double>(batch.tensor("labels").ge(0).sum().item<std::int64_t>())};
  }

 private:
  TrunkOutput trunk_;
  ValueOptions options_;
  Norm norm_;
  Head head_;
};

nn::BlockSpec make_value(const TrunkOutput& trunk,
                         const json::Value& options,
                         config::Problems& problems,
                         config::Origins& origins) {
  require_decoder(trunk, "value");
  ValueOptions read;
  config::read(options, read, problems, origins);
  return {"head", [trunk, read] { return std::make_unique<Value>(trunk, read); }};
}

TESSERA_OBJECTIVE("value", make_value);
TESSERA_OBJECTIVE_TRAITS("value", value, {.predicts = Predicts::TokenValue});

}  // namespace
}  // namespace tessera::models
