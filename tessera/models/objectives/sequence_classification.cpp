// SPDX-License-Identifier: Apache-2.0
// Classification of whole samples (sequences or images): the final norm, the family's head on one
// hidden state of each sample, and the loss of the sample's label: cross-entropy for one class,
// binary cross-entropy for several, or the squared error for numbers. Parameters and arithmetic are
// those of Hugging Face's ...ForSequenceClassification and ...ForImageClassification.
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

/// The cross entropy of flags, summed. The device on which memory is predicted has no kernel for
/// the logarithm of a sigmoid; only shapes count there.
at::Tensor logistic_loss(const at::Tensor& given_BL, const at::Tensor& wanted_BL) {
  if (given_BL.is_meta()) return (at::softplus(given_BL) - given_BL * wanted_BL).sum();
  return at::binary_cross_entropy_with_logits(
      given_BL, wanted_BL, /*weight=*/{}, /*pos_weight=*/{}, at::Reduction::Sum);
}

// Hugging Face's names of the problem types.
constexpr const char* kSingleLabel = "single_label_classification";
constexpr const char* kMultiLabel = "multi_label_classification";
constexpr const char* kRegression = "regression";

/// One of several heads, which share everything but their rows of the output layer.
struct LabelHead {
  std::string name;
  std::int64_t first = 0, size = 0;  ///< its logits
  double weight = 1.0;               ///< of its loss
  ClassLoss loss = {};               ///< with its class weights
};

struct ClassificationOptions {
  std::int64_t num_labels = 2;
  json::Value heads_written;
  std::vector<LabelHead> heads;  // made of it
  std::vector<double> thresholds;
  std::string problem_type = kSingleLabel;
  std::vector<std::string> labels;
  ClassLoss loss;
  void describe(config::Fields& fields) {
    describe_num_labels(num_labels, "Number of classes that a sample may belong to.", fields);
    describe_label_names(labels, fields);
    fields.field("heads",
                 heads_written,
                 {.text = "Several heads, each with a label of its own: [{\"name\": \"topic\", "
                          "\"labels\": [\"sport\", \"arts\"], \"weight\": 1, \"class_weights\": "
                          "[1, 3]}, ...]. num_labels is the number of their labels together.",
                  .default_text = "one"});
    fields.field(
        "problem_type",
        problem_type,
        {.text =
             "Label of a sample: one class, a flag (0 or 1) per class, or one number per output.",
         .choices = {kSingleLabel, kMultiLabel, kRegression}});
    fields.field("thresholds",
                 thresholds,
                 {.text = "Probability of each class of several above which it is predicted; kept "
                          "with the model, without effect on training.",
                  .default_text = "0.5 each"});
    loss.describe(fields);
  }
};

/// Reads the class weights of a head, which may have none. Returns false if they do not fit.
bool read_class_weights(const json::Value& written, LabelHead& head) {
  const json::Value* const weights = written.find("class_weights");
  if (weights == nullptr) return true;
  if (!weights->is_array() || std::ssize(weights->items()) != head.size) return false;
  for (const json::Value& weight : weights->items()) {
    if (!weight.is_number() || !(weight.as_double() >= 0)) return false;
    head.loss.class_weights.push_back(weight.as_double());
  }
  return true;
}

/// Reads the heads; adds a problem unless they have all classes.
void read_heads(ClassificationOptions& options,
                config::Problems& problems,
                const config::Origins& origins) {
  const json::Value& written = options.heads_written;
  if (written.is_null()) return;
  std::int64_t first = 0;
  bool right = written.is_array();
  for (const json::Value& one : right ? written.items() : std::vector<json::Value>()) {
    const json::Value* const name = one.is_object() ? one.find("name") : nullptr;
    const json::Value* const labels = one.is_object() ? one.find("labels") : nullptr;
    const json::Value* const weight = one.is_object() ? one.find("weight") : nullptr;
    if (name == nullptr || !name->is_string() || labels == nullptr || !labels->is_array() ||
        labels->items().empty() || (weight != nullptr && !weight->is_number())) {
      right = false;
      break;
    }
    options.heads.push_back({.name = name->as_string(),
                             .first = first,
                             .size = std::ssize(labels->items()),
                             .weight = weight != nullptr ? weight->as_double() : 1.0,
                             .loss = options.loss});
    first += options.heads.back().size;
    right = right && read_class_weights(one, options.heads.back());
  }
  if (right && first == options.num_labels) return;
  problems.add(origins.place("heads"),
               "heads",
               fmt::format("heads with {} labels of {}", first, options.num_labels),
               "give each a name and its labels, which together are all, and, if any, a class "
               "weight for each label");
}

/// Converts labels [B], or [B, L], to floats [B, L].
at::Tensor float_labels(const at::Tensor& labels, const at::Tensor& logits_BL) {
  const bool one = logits_BL.size(1) == 1 && labels.dim() == 1;
  TESSERA_REQUIRE(
      at::isFloatingType(labels.scalar_type()) &&
          (one ? labels.size(0) == logits_BL.size(0) : labels.sizes() == logits_BL.sizes()),
      Shape,
      fmt::format("the batch's \"label\" has {} dimensions and the type {}",
                  labels.dim(),
                  c10::toString(labels.scalar_type())),
      fmt::format("give {} numbers for each sample", logits_BL.size(1)));
  return labels.to(at::kDouble).reshape(logits_BL.sizes());
}

class SequenceClassification final : public nn::Objective {
 public:
  SequenceClassification(TrunkOutput trunk, ClassificationOptions options, const char* name)
      : trunk_(std::move(trunk)),
        options_(std::move(options)),
        name_(name),
        norm_(trunk_.norm),
        head_(trunk_.heads.sample, options_.num_labels) {}

  void declare(nn::Params& params) override {
    norm_.declare(params, trunk_.norm_name, trunk_.hidden_size, kGlobalName);
    head_.declare(params, trunk_);
  }

  [[nodiscard]] bool works_by_token() const override { return true; }

  nn::Outcome forward(nn::Flow in, const nn::Batch& batch, nn::StepContext& context) override {
    require_no_generation(context, name_);
    const at::Tensor x_BC = pooled(in.diff.at(0), trunk_.heads.pooling, norm_, batch, context);
    const at::Tensor logits_BL = nn::shared_gradient(head_(x_BC, context), context);
    nn::Outcome out;
    if (batch.has("label")) add_terms(out, logits_BL, batch.tensor("label"), context);
    if (!batch.has("label")) {
      out.outputs["logits"] = logits_BL;
    } else if (context.want_logits) {
      out.outputs["logits"] = logits_BL.detach();
    }
    return out;
  }

  [[nodiscard]] std::vector<double> denominators(const nn::Batch& batch) const override {
    const at::Tensor& labels = batch.tensor("label");
    if (!options_.heads.empty()) {
      std::vector<double> out;
      for (std::int64_t h = 0; h < std::ssize(options_.heads); ++h) {
        const LabelHead& head = options_.heads[static_cast<std::size_t>(h)];
        const std::vector<double> own = class_denominators(labels.select(1, h), head.loss);
        out.insert(out.end(), own.begin(), own.end());
      }
      return out;
    }
    if (options_.problem_type == kSingleLabel) return class_denominators(labels, options_.loss);
    return {static_cast<double>(labels.numel())};
  }

 private:
  /// The terms of each head, which have its name in front: "topic_loss", "topic_accuracy".
  void add_terms_of_heads(nn::Outcome& out,
                          const at::Tensor& logits_BL,
                          const at::Tensor& labels_BH,
                          const nn::StepContext& context) const {
    const auto heads = std::ssize(options_.heads);
    TESSERA_REQUIRE(labels_BH.dim() == 2 && labels_BH.size(0) == logits_BL.size(0) &&
                        labels_BH.size(1) == heads && labels_BH.scalar_type() == at::kLong,
                    Shape,
                    fmt::format("the batch's \"label\" has {} dimensions and the type {}",
                                labels_BH.dim(),
                                c10::toString(labels_BH.scalar_type())),
                    fmt::format("give {} int64 labels for each sample, -100 where one is to be "
                                "ignored",
                                heads));
    int denominators = 0;  // of earlier heads
    for (int h = 0; h < heads; ++h) {
      const LabelHead& head = options_.heads[static_cast<std::size_t>(h)];
      nn::Outcome own;
      add_class_terms(own,
                      logits_BL.narrow(1, head.first, head.size),
                      labels_BH.select(1, h).contiguous(),
                      head.loss,
                      context.training(),
                      "sample");
      for (nn::Term& term : own.terms) {
        term.name = head.name + "_" + term.name;
        term.denominator += denominators;
        term.weight *= head.weight;
        out.terms.push_back(std::move(term));
      }
      denominators += head.loss.class_weights.empty() ? 1 : 2;  // see class_denominators()
    }
  }

  void add_terms(nn::Outcome& out,
                 const at::Tensor& logits_BL,
                 const at::Tensor& labels,
                 const nn::StepContext& context) const {
    if (!options_.heads.empty()) {
      add_terms_of_heads(out, logits_BL, labels, context);
      return;
    }
    if (options_.problem_type == kSingleLabel) {
      TESSERA_REQUIRE(labels.dim() == 1 && labels.size(0) == logits_BL.size(0) &&
                          labels.scalar_type() == at::kLong,
                      Shape,
                      fmt::format("the batch's \"label\" has {} dimensions and the type {}",
                                  labels.dim(),
                                  c10::toString(labels.scalar_type())),
                      "give one int64 label for each sample, -100 where it is to be ignored");
      add_class_terms(out, logits_BL, labels, options_.loss, context.training(), "sample");
      return;
    }
    const at::Tensor wanted_BL = float_labels(labels, logits_BL);
    const at::Tensor given_BL = logits_BL.to(at::kDouble);
    const at::Tensor loss = options_.problem_type == kRegression
                                ? (given_BL - wanted_BL).square().sum()
                                : logistic_loss(given_BL, wanted_BL);
    out.terms = {{.name = "loss", .sum = loss}};
  }

  TrunkOutput trunk_;
  ClassificationOptions options_;
  const char* name_;
  Norm norm_;
  Head head_;
};

nn::BlockSpec make(const char* name,
                   const TrunkOutput& trunk,
                   const json::Value& options,
                   config::Problems& problems,
                   config::Origins& origins) {
  ClassificationOptions read;
  config::read(options, read, problems, origins);
  check_label_names(read.labels, read.num_labels, problems, origins);
  read.loss.check(read.num_labels, problems, origins);
  read_heads(read, problems, origins);
  const auto refuse = [&](const char* key) {
    problems.add(origins.place(key),
                 key,
                 fmt::format("{} has no meaning for the problem {}", key, read.problem_type),
                 "remove it");
  };
  const bool with_thresholds = !read.thresholds.empty();
  if (with_thresholds && read.problem_type != kMultiLabel) refuse("thresholds");
  if (with_thresholds && std::ssize(read.thresholds) != read.num_labels) {
    problems.add(
        origins.place("thresholds"),
        "thresholds",
        fmt::format("{} thresholds for {} classes", read.thresholds.size(), read.num_labels),
        "give one for each class");
  }
  if (!read.heads.empty() && read.problem_type != kSingleLabel) refuse("heads");
  if (!read.heads.empty() && !read.loss.class_weights.empty()) refuse("class_weights");
  if (read.problem_type != kSingleLabel) {
    if (read.loss.label_smoothing > 0) refuse("label_smoothing");
    if (read.loss.focal_gamma > 0) refuse("focal_gamma");
    if (!read.loss.class_weights.empty()) refuse("class_weights");
  }
  return {"head", [trunk, read, name] {
            return std::make_unique<SequenceClassification>(trunk, read, name);
          }};
}

nn::BlockSpec make_sequence_classification(const TrunkOutput& trunk,
                                           const json::Value& options,
                                           config::Problems& problems,
                                           config::Origins& origins) {
  TESSERA_REQUIRE(trunk.modality == Modality::Text,
                  Unsupported,
                  "sequence_classification reads tokens, and the model's family reads images",
                  "choose the family of a language model in model.family");
  TESSERA_REQUIRE(!trunk.target,
                  Unsupported,
                  "sequence_classification reads one text, and the model's family answers one by "
                  "another",
                  "choose the family of an encoder or of a decoder in model.family");
  return make("sequence_classification", trunk, options, problems, origins);
}

nn::BlockSpec make_image_classification(const TrunkOutput& trunk,
                                        const json::Value& options,
                                        config::Problems& problems,
                                        config::Origins& origins) {
  TESSERA_REQUIRE(trunk.modality == Modality::Images,
                  Unsupported,
                  "image_classification reads images, and the model's family reads tokens",
                  "choose the family of a model of images in model.family");
  return make("image_classification", trunk, options, problems, origins);
}

TESSERA_OBJECTIVE("sequence_classification", make_sequence_classification);
TESSERA_OBJECTIVE("image_classification", make_image_classification);
TESSERA_OBJECTIVE_TRAITS("sequence_classification",
                         sequence_classification,
                         {.predicts = Predicts::TextClass, .distills = true});
TESSERA_OBJECTIVE_TRAITS("image_classification",
                         image_classification,
                         {.predicts = Predicts::ImageClass, .distills = true});

}  // namespace
}  // namespace tessera::models
