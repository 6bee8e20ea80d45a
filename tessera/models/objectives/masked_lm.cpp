// SPDX-License-Identifier: Apache-2.0
// Masked language modelling: the final norm, the family's transformation, a head over the
// vocabulary with a bias, and the cross-entropy of the tokens that have a label. Parameters and
// arithmetic are those of Hugging Face's ...ForMaskedLM.  Source: Devlin et al. 2019, "BERT".
#include <memory>
#include <utility>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/models/objective.h"
#include "tessera/models/objectives/head.h"
#include "tessera/models/objectives/labels.h"
#include "tessera/nn/vocab_head.h"
#include "tessera/ops/cross_entropy.h"

// Legend: B batch, T tokens, C embed, V vocabulary, N tokens with a label.
namespace tessera::models {
namespace {

using enum LogicalAxis;

struct MaskedLmOptions {
  double label_smoothing = 0.0;
  void describe(config::Fields& fields) { describe_label_smoothing(label_smoothing, fields); }
};

class MaskedLm final : public nn::Objective {
 public:
  MaskedLm(TrunkOutput trunk, MaskedLmOptions options)
      : trunk_(std::move(trunk)),
        options_(options),
        norm_(trunk_.norm),
        transform_(trunk_.heads.masked_lm.value()) {}

  void declare(nn::Params& params) override {
    norm_.declare(params, trunk_.norm_name, trunk_.hidden_size, kGlobalName);
    transform_.declare(params, trunk_);
    const HeadSpec& spec = transform_.spec();
    const VocabularyTable& table = trunk_.vocabulary;
    weight_ = table.tied ? declare_table(params, trunk_)
                         : params.add(spec.output + ".weight",
                                      {table.vocab_size, trunk_.hidden_size},
                                      {Vocab, Embed},
                                      Init::normal(trunk_.init_std),
                                      kGlobalName);
    if (!spec.output_bias.empty()) {
      bias_ = params.add(spec.output_bias, {table.vocab_size}, {Vocab}, Init::zeros(), kGlobalName);
    }
  }

  [[nodiscard]] bool works_by_token() const override { return true; }
  [[nodiscard]] std::string grid_obstacle() const override { return "the head of masked_lm"; }

  nn::Outcome forward(nn::Flow in, const nn::Batch& batch, nn::StepContext& context) override {
    require_no_generation(context, "masked_lm");
    nn::refuse_grid(*this, context);
    at::Tensor x = norm_(in.diff.at(0), context);
    if (!batch.has("labels")) {
      const at::Tensor y_BTC = transform_(x, context);
      return {.outputs = {{"logits", nn::vocab_logits(y_BTC, *weight_, bias_, context)}}};
    }
    at::Tensor labels = batch.tensor("labels");
    // Ranks that split the tokens have different tokens before the head than in it.
    if (!context.want_logits && !context.cuts_tokens()) keep_labelled(x, labels);
    const double smoothing = context.training() ? options_.label_smoothing : 0.0;
    const nn::VocabLoss loss =
        nn::vocab_loss(transform_(x, context), *weight_, bias_, labels, smoothing, context);
    nn::Outcome out = {.terms = {{.name = "loss", .sum = loss.sum}}};
    if (loss.logits.defined()) out.outputs["logits"] = loss.logits;
    return out;
  }

  [[nodiscard]] std::vector<double> denominators(const nn::Batch& batch) const override {
    return {number_of_labels(batch.tensor("labels"))};
  }
  [[nodiscard]] std::int64_t samples_at_once(const nn::Batch& batch) const override {
    // The padded size, not this rank's share, because all ranks must take the same steps.
    return ops::samples_of_logits(batch.tensor("labels").size(1),
                                  weight_->info().room_numel() / trunk_.hidden_size);
  }

 private:
  /// Reduces x [B, T, C] and labels [B, T] to the tokens that have a label, [N, C] and [N]: about
  /// one in seven, so that the head costs a seventh. Keeps all tokens if none has a label.
  static void keep_labelled(at::Tensor& x, at::Tensor& labels) {
    if (labels.is_meta()) return;
    const at::Tensor rows_N = labels.flatten().ne(ops::kIgnoreLabel).nonzero().squeeze(1);
    if (rows_N.numel() == 0) return;
    x = x.flatten(0, 1).index_select(0, rows_N);
    labels = labels.flatten().index_select(0, rows_N);
  }

  TrunkOutput trunk_;
  MaskedLmOptions options_;
  Norm norm_;
  HeadTransform transform_;
  Param* weight_ = nullptr;
  Param* bias_ = nullptr;
};

nn::BlockSpec make_masked_lm(const TrunkOutput& trunk,
                             const json::Value& options,
                             config::Problems& problems,
                             config::Origins& origins) {
  TESSERA_REQUIRE(trunk.heads.masked_lm.has_value(),
                  Unsupported,
                  "masked_lm needs a family whose tokens see all tokens of their text, and that of "
                  "the model is none",
                  "choose the family of a text encoder in model.family, or the task pretrain");
  MaskedLmOptions read;
  config::read(options, read, problems, origins);
  return {"head", [trunk, read] { return std::make_unique<MaskedLm>(trunk, read); }};
}

TESSERA_OBJECTIVE("masked_lm", make_masked_lm);

}  // namespace
}  // namespace tessera::models
