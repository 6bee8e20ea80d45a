// SPDX-License-Identifier: Apache-2.0
// Predicts the next token, with a decoder (causal_lm; prefix_lm: the first tokens of a sample see
// each other in both directions) or an encoder-decoder model (seq2seq): the final norm, a head over
// the vocabulary, and the cross-entropy.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/models/objective.h"
#include "tessera/models/objectives/head.h"
#include "tessera/models/objectives/labels.h"
#include "tessera/models/objectives/text_head.h"
#include "tessera/nn/functional.h"
#include "tessera/nn/vocab_head.h"

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
      : head_(std::move(trunk)), options_(options) {}

  void declare(nn::Params& params) override { head_.declare(params); }

  [[nodiscard]] bool works_by_token() const override { return true; }

  nn::Outcome forward(nn::Flow in, const nn::Batch& batch, nn::StepContext& context) override {
    if (TextHead::generating(context)) return head_.generated(in.diff.at(0), context);
    const at::Tensor x_BTC = head_.states(in.diff.at(0), context);
    if (!batch.has("labels")) return {.outputs = {{"logits", head_.logits(x_BTC, context)}}};
    // Evaluation reports the plain cross-entropy.
    const double smoothing = context.training() ? options_.label_smoothing : 0.0;
    const nn::VocabLoss loss = nn::vocab_loss(x_BTC,
                                              head_.weight(),
                                              head_.bias(),
                                              batch.tensor("labels"),
                                              smoothing,
                                              context,
                                              head_.trunk().logit_softcap);
    nn::Outcome out = {.terms = {{.name = "loss", .sum = loss.sum}}};
    if (loss.logits.defined()) out.outputs["logits"] = loss.logits;
    return out;
  }

  [[nodiscard]] std::vector<double> denominators(const nn::Batch& batch) const override {
    return {number_of_labels(batch.tensor("labels"))};
  }
  [[nodiscard]] std::int64_t samples_at_once(const nn::Batch& batch) const override {
    return head_.samples_at_once(batch.tensor("labels").size(1));
  }

 private:
  TextHead head_;
  NextTokenOptions options_;
};

nn::BlockSpec make(const TrunkOutput& trunk,
                   const json::Value& options,
                   config::Problems& problems,
                   config::Origins& origins) {
  NextTokenOptions read;
  config::read(options, read, problems, origins);
  return {"head", [trunk, read] { return std::make_unique<NextToken>(trunk, read); }};
}

nn::BlockSpec make_prefix_lm(const TrunkOutput& trunk,
                             const json::Value& options,
                             config::Problems& problems,
                             config::Origins& origins) {
  require_decoder(trunk, "prefix_lm");
  return make(trunk, options, problems, origins);
}

nn::BlockSpec make_causal_lm(const TrunkOutput& trunk,
                             const json::Value& options,
                             config::Problems& problems,
                             config::Origins& origins) {
  require_decoder(trunk, "causal_lm");
  return make(trunk, options, problems, origins);
}

nn::BlockSpec make_seq2seq(const TrunkOutput& trunk,
                           const json::Value& options,
                           config::Problems& problems,
                           config::Origins& origins) {
  TESSERA_REQUIRE(trunk.target.has_value(),
                  Unsupported,
                  "the task seq2seq needs an encoder-decoder, and the model's family has one half "
                  "only",
                  "choose the family of an encoder-decoder in model.family, or the task pretrain");
  return make(trunk, options, problems, origins);
}

TESSERA_OBJECTIVE("causal_lm", make_causal_lm);
TESSERA_OBJECTIVE("prefix_lm", make_prefix_lm);
TESSERA_OBJECTIVE("seq2seq", make_seq2seq);
TESSERA_OBJECTIVE_TRAITS("causal_lm",
                         causal_lm,
                         {.predicts = Predicts::NextToken,
                          .has_perplexity = true,
                          .distills = true});
TESSERA_OBJECTIVE_TRAITS("prefix_lm",
                         prefix_lm,
                         {.predicts = Predicts::NextTokenOfPrefix, .has_perplexity = true});
TESSERA_OBJECTIVE_TRAITS("seq2seq",
                         seq2seq,
                         {.predicts = Predicts::AnswerToken,
                          .has_perplexity = true,
                          .distills = true});

}  // namespace
}  // namespace tessera::models
