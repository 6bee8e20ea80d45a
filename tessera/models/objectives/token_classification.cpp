// SPDX-License-Identifier: Apache-2.0
// Classification of each token: the final norm, the family's head on every hidden state, and the
// cross-entropy of the labels that are not -100. Parameters and arithmetic are those of Hugging
// Face's ...ForTokenClassification.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/models/objective.h"
#include "tessera/models/objectives/head.h"
#include "tessera/models/objectives/labels.h"
#include "tessera/nn/functional.h"

// Legend: B batch, T tokens, C embed, L labels.
namespace tessera::models {
namespace {

struct TokenOptions {
  std::int64_t num_labels = 2;
  std::vector<std::string> labels;
  ClassLoss loss;
  void describe(config::Fields& fields) {
    describe_num_labels(num_labels, "Number of classes that a token may belong to.", fields);
    describe_label_names(labels, fields);
    loss.describe(fields);
  }
};

class TokenClassification final : public nn::Objective {
 public:
  TokenClassification(TrunkOutput trunk, TokenOptions options)
      : trunk_(std::move(trunk)),
        options_(options),
        norm_(trunk_.norm),
        head_(trunk_.heads.token.value(), options.num_labels) {}

  void declare(nn::Params& params) override {
    norm_.declare(params, trunk_.norm_name, trunk_.hidden_size, kGlobalName);
    head_.declare(params, trunk_);
  }

  [[nodiscard]] bool works_by_token() const override { return true; }

  nn::Outcome forward(nn::Flow in, const nn::Batch& batch, nn::StepContext& context) override {
    require_no_generation(context, "token_classification");
    const at::Tensor x_BTC = nn::gather_flow(norm_(in.diff.at(0), context), context);
    const at::Tensor logits_BTL = nn::uncut_tokens(head_(x_BTC, context), context);
    nn::Outcome out;
    if (batch.has("labels")) {
      const at::Tensor& labels_BT = batch.tensor("labels");
      TESSERA_REQUIRE(labels_BT.scalar_type() == at::kLong && labels_BT.dim() == 2 &&
                          labels_BT.size(1) == logits_BTL.size(1),
                      Shape,
                      fmt::format("the batch's \"labels\" have {} dimensions and the type {}",
                                  labels_BT.dim(),
                                  c10::toString(labels_BT.scalar_type())),
                      "give one int64 label for each token, -100 where it is to be ignored");
      add_class_terms(out,
                      logits_BTL.flatten(0, 1),
                      labels_BT.flatten(),
                      options_.loss,
                      context.training(),
                      "token");
    }
    if (!batch.has("labels")) {
      out.outputs["logits"] = logits_BTL;
    } else if (context.want_logits) {
      out.outputs["logits"] = logits_BTL.detach();
    }
    return out;
  }

  [[nodiscard]] std::vector<double> denominators(const nn::Batch& batch) const override {
    return class_denominators(batch.tensor("labels"), options_.loss);
  }

 private:
  TrunkOutput trunk_;
  TokenOptions options_;
  Norm norm_;
  Head head_;
};

nn::BlockSpec make_token_classification(const TrunkOutput& trunk,
                                        const json::Value& options,
                                        config::Problems& problems,
                                        config::Origins& origins) {
  TESSERA_REQUIRE(trunk.heads.token.has_value(),
                  Unsupported,
                  "token_classification needs a family with a head for single tokens, and that of "
                  "the model has none",
                  "choose the family of an encoder in model.family");
  TokenOptions read;
  config::read(options, read, problems, origins);
  check_label_names(read.labels, read.num_labels, problems, origins);
  read.loss.check(read.num_labels, problems, origins);
  return {"head", [trunk, read] { return std::make_unique<TokenClassification>(trunk, read); }};
}

TESSERA_OBJECTIVE("token_classification", make_token_classification);
TESSERA_OBJECTIVE_TRAITS("token_classification",
                         token_classification,
                         {.predicts = Predicts::TokenClass, .distills = true});

}  // namespace
}  // namespace tessera::models
