// SPDX-License-Identifier: Apache-2.0
// Masked language modelling: the final norm, the family's transformation, a head over the
// vocabulary with a bias, and the cross-entropy of the tokens that have a label. masked_lm_pairs
// also classifies how two texts belong together, by a head on the first token. Parameters and
// arithmetic are those of Hugging Face's ...ForMaskedLM and ...ForPreTraining.  Source: Devlin et
// al. 2019, "BERT".
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/models/objective.h"
#include "tessera/models/objectives/head.h"
#include "tessera/models/objectives/labels.h"
#include "tessera/nn/flow_form.h"
#include "tessera/nn/functional.h"
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

struct PairOptions : MaskedLmOptions {
  std::string pairs = "nsp";
  void describe(config::Fields& fields) {
    MaskedLmOptions::describe(fields);
    fields.field("pairs",
                 pairs,
                 {.text = "Sentence-pair objective: nsp (next sentence) or sop (sentence order).",
                  .choices = {"nsp", "sop"}});
  }
};

class MaskedLm final : public nn::Objective {
 public:
  /// `pairs`: the sentence-pair objective (nsp, sop); empty: none.
  MaskedLm(TrunkOutput trunk, MaskedLmOptions options, std::string pairs)
      : trunk_(std::move(trunk)),
        options_(options),
        pairs_(std::move(pairs)),
        norm_(trunk_.norm),
        transform_(trunk_.heads.masked_lm.value()) {
    constexpr std::int64_t kClasses = 2;
    if (!pairs_.empty()) pair_head_.emplace(trunk_.heads.pair.value(), kClasses);
  }

  void declare(nn::Params& params) override {
    norm_.declare(params, trunk_.norm_name, trunk_.hidden_size, kGlobalName);
    transform_.declare(params, trunk_);
    const HeadSpec& spec = transform_.spec();
    const VocabularyTable& table = trunk_.vocabulary;
    weight_ = table.tied ? declare_table(params, trunk_)
                         : params.add(spec.output + ".weight",
                                      {table.vocab_size, trunk_.hidden_size},
                                      {Vocab, Embed},
                                      trunk_.init(spec.output_std),
                                      kGlobalName);
    if (!spec.output_bias.empty()) {
      bias_ = params.add(spec.output_bias, {table.vocab_size}, {Vocab}, Init::zeros(), kGlobalName);
    }
    if (pair_head_) pair_head_->declare(params, trunk_);
  }

  [[nodiscard]] bool works_by_token() const override { return true; }

  nn::Outcome forward(nn::Flow in, const nn::Batch& batch, nn::StepContext& context) override {
    require_no_generation(context, "masked_lm");
    nn::refuse_grid(*this, context);
    nn::Outcome out;
    add_tokens(out, norm_(in.diff.at(0), context), batch, context);
    if (pair_head_) add_pairs(out, in.diff.at(0), batch, context);
    return out;
  }

  [[nodiscard]] std::vector<double> denominators(const nn::Batch& batch) const override {
    std::vector<double> out = {number_of_labels(batch.tensor("labels"))};
    if (pair_head_) out.push_back(number_of_labels(batch.tensor("pair_label")));
    return out;
  }
  [[nodiscard]] std::int64_t samples_at_once(const nn::Batch& batch) const override {
    // The padded size, not this rank's share, because all ranks must take the same steps.
    return ops::samples_of_logits(batch.tensor("labels").size(1),
                                  weight_->info().room_numel() / trunk_.hidden_size);
  }

 private:
  void add_tokens(nn::Outcome& out,
                  at::Tensor x,
                  const nn::Batch& batch,
                  nn::StepContext& context) const {
    if (!batch.has("labels")) {
      out.outputs["logits"] =
          nn::vocab_logits(transform_.in_flow(x, context), *weight_, bias_, context);
      return;
    }
    at::Tensor labels = batch.tensor("labels");
    // Ranks that split tokens or samples hold different ones before the head and in it.
    if (!context.want_logits && !nn::flow_form(context).is_partial(context))
      keep_labelled(x, labels);
    const double smoothing = context.training() ? options_.label_smoothing : 0.0;
    const at::Tensor y = transform_.in_flow(x, context);
    const nn::VocabLoss loss = nn::vocab_loss(y, *weight_, bias_, labels, smoothing, context);
    out.terms.push_back({.name = pair_head_ ? "mlm_loss" : "loss", .sum = loss.sum});
    if (loss.logits.defined()) out.outputs["logits"] = loss.logits;
    if (context.training()) return;
    out.terms.push_back({.name = pair_head_ ? "mlm_accuracy" : "accuracy",
                         .sum = loss.logits.defined()
                                    ? loss.logits.argmax(-1).eq(labels).sum(at::kDouble)
                                    : right_tokens(y, labels, context),
                         .weight = 0.0});
  }

  /// The number of tokens whose largest logit is that of their label, 0-d; `y` [B, T, C] or [N, C].
  /// Memory: the logits of kRows rows of `y`.
  [[nodiscard]] at::Tensor right_tokens(const at::Tensor& y,
                                        const at::Tensor& labels,
                                        nn::StepContext& context) const {
    // On a grid the logits are those of all samples, of which `y` has some.
    if (context.splits_samples())
      return nn::vocab_logits(y, *weight_, bias_, context).argmax(-1).eq(labels).sum(at::kDouble);
    const std::int64_t rows = y.dim() == 3 ? 1 : kRows;
    at::Tensor right = at::zeros({}, labels.options().dtype(at::kDouble));
    for (std::int64_t begin = 0; begin < y.size(0); begin += rows) {
      const std::int64_t count = std::min(rows, y.size(0) - begin);
      const at::Tensor logits =
          nn::vocab_logits(y.narrow(0, begin, count), *weight_, bias_, context);
      right = right + logits.argmax(-1).eq(labels.narrow(0, begin, count)).sum(at::kDouble);
    }
    return right;
  }

  void add_pairs(nn::Outcome& out,
                 const at::Tensor& x_BTC,
                 const nn::Batch& batch,
                 nn::StepContext& context) const {
    const at::Tensor x_BC = pooled(x_BTC, Pooling::FirstToken, norm_, batch, context);
    const at::Tensor logits_B2 = nn::shared_gradient((*pair_head_)(x_BC, context), context);
    if (context.want_logits || !batch.has("labels"))
      out.outputs["pair_logits"] = logits_B2.detach();
    if (!batch.has("labels")) return;
    nn::Outcome of_pairs;
    add_class_terms(
        of_pairs, logits_B2, batch.tensor("pair_label"), ClassLoss(), context.training(), "sample");
    for (nn::Term& term : of_pairs.terms) {
      term.name = pairs_ + "_" + term.name;
      term.denominator = 1;
      out.terms.push_back(std::move(term));
    }
  }

  /// Reduces x [B, T, C] and labels [B, T] to the tokens that have a label, [N, C] and [N]: about
  /// one in seven, so that the head costs a seventh. Keeps all tokens if none has a label.
  static void keep_labelled(at::Tensor& x, at::Tensor& labels) {
    if (labels.is_meta()) return;
    const at::Tensor rows_N = labels.flatten().ne(ops::kIgnoreLabel).nonzero().squeeze(1);
    if (rows_N.numel() == 0) return;
    x = x.flatten(0, 1).index_select(0, rows_N);
    labels = labels.flatten().index_select(0, rows_N);
  }

  static constexpr std::int64_t kRows = 256;

  TrunkOutput trunk_;
  MaskedLmOptions options_;
  std::string pairs_;
  Norm norm_;
  HeadTransform transform_;
  std::optional<Head> pair_head_;
  Param* weight_ = nullptr;
  Param* bias_ = nullptr;
};

void require_encoder(const TrunkOutput& trunk) {
  TESSERA_REQUIRE(trunk.heads.masked_lm.has_value(),
                  Unsupported,
                  "masked_lm needs a family whose tokens see all tokens of their text, and that of "
                  "the model is none",
                  "choose the family of a text encoder in model.family, or the task pretrain");
}

nn::BlockSpec make_masked_lm(const TrunkOutput& trunk,
                             const json::Value& options,
                             config::Problems& problems,
                             config::Origins& origins) {
  require_encoder(trunk);
  MaskedLmOptions read;
  config::read(options, read, problems, origins);
  return {"head", [trunk, read] { return std::make_unique<MaskedLm>(trunk, read, ""); }};
}

nn::BlockSpec make_masked_lm_pairs(const TrunkOutput& trunk,
                                   const json::Value& options,
                                   config::Problems& problems,
                                   config::Origins& origins) {
  require_encoder(trunk);
  TESSERA_REQUIRE(trunk.heads.pair.has_value(),
                  Unsupported,
                  "the model's family has no sentence-pair head",
                  "remove task.params.pairs, or choose the family of another encoder in "
                  "model.family");
  PairOptions read;
  config::read(options, read, problems, origins);
  return {"head", [trunk, read] { return std::make_unique<MaskedLm>(trunk, read, read.pairs); }};
}

TESSERA_OBJECTIVE("masked_lm", make_masked_lm);
TESSERA_OBJECTIVE("masked_lm_pairs", make_masked_lm_pairs);
TESSERA_OBJECTIVE_TRAITS("masked_lm",
                         masked_lm,
                         {.predicts = Predicts::HiddenToken,
                          .has_perplexity = true,
                          .distills = true});
TESSERA_OBJECTIVE_TRAITS("masked_lm_pairs",
                         masked_lm_pairs,
                         {.predicts = Predicts::HiddenToken, .has_perplexity = true});

}  // namespace
}  // namespace tessera::models
