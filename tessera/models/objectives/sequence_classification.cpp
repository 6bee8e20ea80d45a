// SPDX-License-Identifier: Apache-2.0
// Classification of whole sequences: the final norm, a linear layer on the last token that is not
// padding, and the cross-entropy of the sequence's label. Parameters and arithmetic are those of
// Hugging Face's ...ForSequenceClassification for decoders.
#include <memory>
#include <utility>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/models/objective.h"
#include "tessera/models/objectives/labels.h"
#include "tessera/nn/functional.h"
#include "tessera/ops/cross_entropy.h"

// Legend: B batch, T tokens, C embed, L labels.
namespace tessera::models {
namespace {

using enum LogicalAxis;

struct ClassificationOptions {
  std::int64_t num_labels = 2;
  double label_smoothing = 0.0;
  void describe(config::Fields& fields) {
    fields.field(
        "num_labels",
        num_labels,
        {.text = "Number of classes that a sequence may belong to.", .min = 1, .max = 1e6});
    describe_label_smoothing(label_smoothing, fields);
  }
};

/// The position of each sample's last token that is not padding, [B].
at::Tensor last_tokens(const nn::Batch& batch, std::int64_t tokens) {
  if (!batch.has("attention_mask")) {
    return at::full({batch.size()}, tokens - 1, batch.tensor("input_ids").options());
  }
  const at::Tensor mask_BT = batch.tensor("attention_mask").ne(0);
  const at::Tensor positions_T = at::arange(tokens, mask_BT.options().dtype(at::kLong));
  return (positions_T * mask_BT).amax(1);
}

class SequenceClassification final : public nn::Objective {
 public:
  SequenceClassification(TrunkOutput trunk, ClassificationOptions options)
      : trunk_(std::move(trunk)), options_(options), norm_(trunk_.norm) {}

  void declare(nn::Params& params) override {
    norm_.declare(params, trunk_.norm_name, trunk_.hidden_size, kGlobalName);
    // Without logical axes: small enough that every tensor-parallel rank holds all of it.
    score_ = params.add("score.weight",
                        {options_.num_labels, trunk_.hidden_size},
                        {None, None},
                        Init::normal(trunk_.init_std),
                        kGlobalName);
  }

  nn::Outcome forward(nn::Flow in, const nn::Batch& batch, nn::StepContext& context) override {
    TESSERA_REQUIRE(context.mode() == nn::Mode::Train || context.mode() == nn::Mode::Eval,
                    Unsupported,
                    "a model with the objective sequence_classification does not generate text",
                    "generate with a model whose objective is causal_lm");
    const std::int64_t tokens = batch.tensor("input_ids").size(1);
    const at::Tensor last_B1C =
        nn::select_tokens(in.diff.at(0), last_tokens(batch, tokens), context);
    const at::Tensor all_BC = nn::gather_flow(norm_(last_B1C, context), context).squeeze(1);
    const at::Tensor logits_BL = nn::vocab_logits(all_BC, *score_, context);
    nn::Outcome out;
    if (batch.has("label")) add_terms(out, logits_BL, batch.tensor("label"), context);
    if (context.want_logits || !batch.has("label")) out.outputs["logits"] = logits_BL.detach();
    return out;
  }

  [[nodiscard]] std::vector<double> denominators(const nn::Batch& batch) const override {
    return {number_of_labels(batch.tensor("label"))};
  }

 private:
  /// The loss, and the number of samples whose largest logit is that of their label.
  void add_terms(nn::Outcome& out,
                 const at::Tensor& logits_BL,
                 const at::Tensor& labels_B,
                 const nn::StepContext& context) const {
    TESSERA_REQUIRE(labels_B.dim() == 1 && labels_B.size(0) == logits_BL.size(0) &&
                        labels_B.scalar_type() == at::kLong,
                    Shape,
                    fmt::format("the batch's \"label\" has {} dimensions and the type {}",
                                labels_B.dim(),
                                c10::toString(labels_B.scalar_type())),
                    "give one int64 label for each sample, -100 where it is to be ignored");
    if (!labels_B.is_meta()) check_labels(labels_B);
    const double smoothing = context.training() ? options_.label_smoothing : 0.0;
    const at::Tensor loss = at::cross_entropy_loss(logits_BL.to(at::kDouble),
                                                   labels_B,
                                                   /*weight=*/{},
                                                   at::Reduction::Sum,
                                                   ops::kIgnoreLabel,
                                                   smoothing);
    const at::Tensor correct = logits_BL.detach().argmax(1).eq(labels_B).sum(at::kDouble);
    out.terms = {{.name = "loss", .sum = loss},
                 {.name = "accuracy", .sum = correct, .weight = 0.0}};
  }

  void check_labels(const at::Tensor& labels_B) const {
    const at::Tensor wrong_B =
        labels_B.ne(ops::kIgnoreLabel)
            .logical_and(labels_B.lt(0).logical_or(labels_B.ge(options_.num_labels)));
    if (!wrong_B.any().item<bool>()) return;
    const auto first = wrong_B.to(at::kByte).argmax().item<std::int64_t>();
    throw Error(Error::Kind::Data,
                fmt::format("the label {} of sample {} of a micro-batch is none of the {} labels "
                            "of the model",
                            labels_B[first].item<std::int64_t>(),
                            first,
                            options_.num_labels),
                fmt::format("give labels from 0 to {}, -100 where one is to be ignored, or raise "
                            "num_labels",
                            options_.num_labels - 1));
  }

  TrunkOutput trunk_;
  ClassificationOptions options_;
  Norm norm_;
  Param* score_ = nullptr;
};

nn::BlockSpec make_sequence_classification(const TrunkOutput& trunk,
                                           const json::Value& options,
                                           config::Problems& problems,
                                           config::Origins& origins) {
  ClassificationOptions read;
  config::read(options, read, problems, origins);
  return {"head", [trunk, read] { return std::make_unique<SequenceClassification>(trunk, read); }};
}

TESSERA_OBJECTIVE("sequence_classification", make_sequence_classification);

}  // namespace
}  // namespace tessera::models
