// SPDX-License-Identifier: Apache-2.0
// The next token, of a text alone (causal_lm) or of a text that answers another one (seq2seq): the
// final norm, a head over the vocabulary, and the cross-entropy.
#include <memory>
#include <utility>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/models/objective.h"
#include "tessera/models/objectives/labels.h"
#include "tessera/nn/functional.h"
#include "tessera/nn/vocab_head.h"
#include "tessera/ops/cross_entropy.h"

// Legend: B batch, T tokens, C embed, V vocabulary.
namespace tessera::models {
namespace {

struct NextTokenOptions {
  double label_smoothing = 0.0;
  void describe(config::Fields& fields) { describe_label_smoothing(label_smoothing, fields); }
};

class NextToken final : public nn::Objective {
 public:
  NextToken(TrunkOutput trunk, NextTokenOptions options)
      : trunk_(std::move(trunk)), options_(options), norm_(trunk_.norm) {}

  void declare(nn::Params& params) override {
    norm_.declare(params, trunk_.norm_name, trunk_.hidden_size, kGlobalName);
    weight_ = declare_vocabulary_head(params, trunk_);
  }

  [[nodiscard]] bool works_by_token() const override { return true; }
  [[nodiscard]] std::string grid_obstacle() const override {
    return trunk_.logit_softcap != 0.0 ? "soft-capped logits" : norm_.grid_obstacle();
  }

  nn::Outcome forward(nn::Flow in, const nn::Batch& batch, nn::StepContext& context) override {
    at::Tensor x_BTC = in.diff.at(0);
    const bool generating =
        context.mode() == nn::Mode::Prefill || context.mode() == nn::Mode::Decode;
    if (generating && !context.want_logits) x_BTC = x_BTC.narrow(1, x_BTC.size(1) - 1, 1);
    x_BTC = finished(norm_(x_BTC, context), context);
    if (generating || !batch.has("labels"))
      return {.outputs = {{"logits", logits_of(x_BTC, context)}}};
    // Evaluation reports the plain cross-entropy.
    const double smoothing = context.training() ? options_.label_smoothing : 0.0;
    const nn::VocabLoss loss = nn::vocab_loss(x_BTC,
                                              *weight_,
                                              /*bias_V=*/nullptr,
                                              batch.tensor("labels"),
                                              smoothing,
                                              context,
                                              trunk_.logit_softcap);
    nn::Outcome out = {.terms = {{.name = "loss", .sum = loss.sum}}};
    if (loss.logits.defined()) out.outputs["logits"] = loss.logits;
    return out;
  }

  [[nodiscard]] std::vector<double> denominators(const nn::Batch& batch) const override {
    return {number_of_labels(batch.tensor("labels"))};
  }
  [[nodiscard]] std::int64_t samples_at_once(const nn::Batch& batch) const override {
    // The room, not this rank's share: all ranks must take the same steps.
    return ops::samples_of_logits(batch.tensor("labels").size(1),
                                  weight_->info().room_numel() / trunk_.hidden_size);
  }

 private:
  [[nodiscard]] at::Tensor finished(const at::Tensor& x_BTC, nn::StepContext& context) const {
    if (!trunk_.target) return x_BTC;
    const at::Tensor y_BTC = nn::dropout(x_BTC, context.dropout("output", trunk_.target->dropout));
    return trunk_.target->scale == 1.0 ? y_BTC : y_BTC * trunk_.target->scale;
  }
  [[nodiscard]] at::Tensor logits_of(const at::Tensor& x_BTC, nn::StepContext& context) const {
    return nn::vocab_logits(x_BTC, *weight_, /*bias_V=*/nullptr, context, trunk_.logit_softcap);
  }

  TrunkOutput trunk_;
  NextTokenOptions options_;
  Norm norm_;
  Param* weight_ = nullptr;
};

nn::BlockSpec make(const TrunkOutput& trunk,
                   const json::Value& options,
                   config::Problems& problems,
                   config::Origins& origins) {
  NextTokenOptions read;
  config::read(options, read, problems, origins);
  return {"head", [trunk, read] { return std::make_unique<NextToken>(trunk, read); }};
}

nn::BlockSpec make_causal_lm(const TrunkOutput& trunk,
                             const json::Value& options,
                             config::Problems& problems,
                             config::Origins& origins) {
  TESSERA_REQUIRE(
      trunk.causal,
      Unsupported,
      "causal_lm predicts the next token, which the tokens of an encoder see",
      "choose another task, such as masked_lm or classify, or the family of a decoder in "
      "model.family");
  TESSERA_REQUIRE(!trunk.target,
                  Unsupported,
                  "causal_lm continues a text, and the model's family answers one by another",
                  "choose the task seq2seq, or the family of a decoder in model.family");
  return make(trunk, options, problems, origins);
}

nn::BlockSpec make_seq2seq(const TrunkOutput& trunk,
                           const json::Value& options,
                           config::Problems& problems,
                           config::Origins& origins) {
  TESSERA_REQUIRE(trunk.target.has_value(),
                  Unsupported,
                  "seq2seq answers a text by another, for which the model's family has no encoder "
                  "beside its decoder",
                  "choose the family of an encoder with a decoder in model.family, or the task "
                  "pretrain");
  return make(trunk, options, problems, origins);
}

TESSERA_OBJECTIVE("causal_lm", make_causal_lm);
TESSERA_OBJECTIVE("seq2seq", make_seq2seq);

}  // namespace
}  // namespace tessera::models
