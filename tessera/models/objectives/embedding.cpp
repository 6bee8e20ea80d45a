// SPDX-License-Identifier: Apache-2.0
// The embedding of a whole text: the final norm, and one hidden state or the mean of all. There is
// no head and no loss; a model without a head, such as Hugging Face's ...Model, is read with it.
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/models/objective.h"
#include "tessera/models/objectives/head.h"

// Legend: B batch, T tokens, C embed.
namespace tessera::models {
namespace {

struct EmbeddingOptions {
  std::optional<std::string> pooling;
  bool normalize = false;
  void describe(config::Fields& fields) {
    fields.field("pooling",
                 pooling,
                 {.text = "Embedding of a text: the hidden state of its first or its last token, "
                          "the mean of all, or BERT's pooler of the first token's.",
                  .choices = {"cls", "last", "mean", "pooler"},
                  .default_text = "last where tokens see those before them alone, else mean"});
    fields.field("normalize",
                 normalize,
                 {.text = "Whether the embedding is divided by its Euclidean length."});
  }
};

Pooling pooling_of(const EmbeddingOptions& options, const TrunkOutput& trunk) {
  const std::string name = options.pooling.value_or(trunk.causal ? "last" : "mean");
  if (name == "cls" || name == "pooler") return Pooling::FirstToken;
  return name == "last" ? Pooling::LastToken : Pooling::Mean;
}

class Embedding final : public nn::Objective {
 public:
  Embedding(TrunkOutput trunk, const EmbeddingOptions& options)
      : trunk_(std::move(trunk)),
        pooling_(pooling_of(options, trunk_)),
        normalize_(options.normalize),
        norm_(trunk_.norm) {
    if (options.pooling == "pooler") pooler_ = HeadTransform(trunk_.heads.sample);
  }

  void declare(nn::Params& params) override {
    norm_.declare(params, trunk_.norm_name, trunk_.hidden_size, kGlobalName);
    if (pooler_) pooler_->declare(params, trunk_);
  }

  [[nodiscard]] bool works_by_token() const override { return true; }

  /// Returns the output "embedding" [B, C], fp32.
  nn::Outcome forward(nn::Flow in, const nn::Batch& batch, nn::StepContext& context) override {
    require_no_generation(context, "embedding");
    TESSERA_REQUIRE(!context.training() && !batch.has("labels") && !batch.has("label"),
                    Unsupported,
                    "a model with the objective embedding has no head, and so no loss",
                    "read embeddings with tessera embed, or train a model under another task");
    at::Tensor x_BC = pooled(in.diff.at(0), pooling_, norm_, batch, context);
    if (pooler_) x_BC = (*pooler_)(x_BC, context);
    x_BC = x_BC.detach().to(at::kFloat);
    constexpr double kLeastLength = 1e-12;
    if (normalize_) x_BC = x_BC / x_BC.norm(2, {1}, /*keepdim=*/true).clamp_min(kLeastLength);
    return {.outputs = {{"embedding", x_BC}}};
  }

  [[nodiscard]] std::vector<double> denominators(const nn::Batch& /*batch*/) const override {
    return {};
  }

 private:
  TrunkOutput trunk_;
  Pooling pooling_;
  bool normalize_;
  Norm norm_;
  std::optional<HeadTransform> pooler_;
};

nn::BlockSpec make_embedding(const TrunkOutput& trunk,
                             const json::Value& options,
                             config::Problems& problems,
                             config::Origins& origins) {
  EmbeddingOptions read;
  config::read(options, read, problems, origins);
  if (read.pooling == "pooler" && !trunk.heads.sample.dense.ends_with("pooler.dense")) {
    problems.add(origins.place("pooling"),
                 "pooling",
                 "the model's family has no pooler",
                 "choose cls, last or mean");
  }
  return {"head", [trunk, read] { return std::make_unique<Embedding>(trunk, read); }};
}

TESSERA_OBJECTIVE("embedding", make_embedding);
TESSERA_OBJECTIVE_TRAITS("embedding", embedding, {.predicts = Predicts::TextVector});

}  // namespace
}  // namespace tessera::models
