// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/objectives/distilled.h"

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/models/objectives/labels.h"
#include "tessera/ops/cross_entropy.h"

// Legend: B batch, N rows with a label, V classes or tokens of the vocabulary.
namespace tessera::models {
namespace {

const char* label_of(const nn::Batch& batch) {
  return batch.has("labels") ? "labels" : "label";
}

nn::Batch without_labels(const nn::Batch& batch) {
  nn::Batch out;
  out.sample_ids = batch.sample_ids;
  for (const auto& [name, tensor] : batch.tensors()) {
    if (name != "labels" && name != "label") out.set(name, tensor);
  }
  return out;
}

/// The rows of the logits [.., V] that have a label, and their first `width` columns: [N, width].
at::Tensor rows_of(const at::Tensor& logits, const at::Tensor& rows_N, std::int64_t width) {
  return logits.flatten(0, -2).narrow(1, 0, width).index_select(0, rows_N).to(at::kFloat);
}

class Distilled final : public nn::Objective {
 public:
  Distilled(std::unique_ptr<nn::Block> inner, TeacherLogits teacher, DistillWeights weights)
      : block_(std::move(inner)),
        inner_(dynamic_cast<nn::Objective*>(block_.get())),
        teacher_(std::move(teacher)),
        weights_(weights) {
    TESSERA_ASSERT(inner_ != nullptr);
  }

  void declare(nn::Params& params) override { inner_->declare(params); }

  nn::Outcome forward(nn::Flow in, const nn::Batch& batch, nn::StepContext& context) override {
    if (!context.training()) return inner_->forward(std::move(in), batch, context);
    const nn::Batch unlabelled = without_labels(batch);
    nn::Outcome out = inner_->forward(in, batch, context);
    for (nn::Term& term : out.terms)
      term.weight *= 1.0 - weights_.alpha;
    const at::Tensor student =
        inner_->forward(std::move(in), unlabelled, context).outputs.at("logits");
    out.terms.push_back({.name = "distillation",
                         .sum = divergence(student, unlabelled, batch.tensor(label_of(batch))),
                         .denominator = static_cast<int>(inner_->denominators(batch).size()),
                         .weight = weights_.alpha});
    return out;
  }

  [[nodiscard]] std::vector<double> denominators(const nn::Batch& batch) const override {
    std::vector<double> out = inner_->denominators(batch);
    out.push_back(number_of_labels(batch.tensor(label_of(batch))));
    return out;
  }
  [[nodiscard]] std::int64_t samples_at_once(const nn::Batch& batch) const override {
    return inner_->samples_at_once(batch);
  }

 private:
  [[nodiscard]] at::Tensor divergence(const at::Tensor& student,
                                      const nn::Batch& batch,
                                      const at::Tensor& labels) const {
    const double t = weights_.temperature;
    // Memory is measured with tensors that have no values.
    if (student.is_meta()) return at::log_softmax(student / t, -1).sum();
    const at::Tensor teacher = teacher_(batch).to(student.device());
    TESSERA_REQUIRE(
        teacher.dim() == student.dim() &&
            teacher.sizes().slice(0, static_cast<std::size_t>(teacher.dim()) - 1) ==
                student.sizes().slice(0, static_cast<std::size_t>(student.dim()) - 1),
        Shape,
        fmt::format("the teacher has logits for {} rows of {} dimensions, and the student for {} "
                    "rows of {}",
                    teacher.numel() / std::max<std::int64_t>(1, teacher.size(-1)),
                    teacher.dim(),
                    student.numel() / std::max<std::int64_t>(1, student.size(-1)),
                    student.dim()),
        "choose a teacher of the same task");
    const at::Tensor rows_N = labels.flatten().ne(ops::kIgnoreLabel).nonzero().squeeze(1);
    const std::int64_t width = std::min(teacher.size(-1), student.size(-1));
    const at::Tensor wanted_NV = at::log_softmax(rows_of(teacher, rows_N, width) / t, -1);
    const at::Tensor given_NV = at::log_softmax(rows_of(student, rows_N, width) / t, -1);
    return (wanted_NV.exp() * (wanted_NV - given_NV)).sum(at::kDouble) * (t * t);
  }

  std::unique_ptr<nn::Block> block_;
  nn::Objective* inner_;  ///< the same object
  TeacherLogits teacher_;
  DistillWeights weights_;
};

}  // namespace

bool can_be_distilled(std::string_view objective) {
  static constexpr std::array<std::string_view, 6> kNames = {"causal_lm",
                                                             "seq2seq",
                                                             "masked_lm",
                                                             "sequence_classification",
                                                             "image_classification",
                                                             "token_classification"};
  return std::find(kNames.begin(), kNames.end(), objective) != kNames.end();
}

nn::BlockSpec distilled(nn::BlockSpec objective, TeacherLogits teacher, DistillWeights weights) {
  objective.make = [make = std::move(objective.make), teacher = std::move(teacher), weights] {
    return std::make_unique<Distilled>(make(), teacher, weights);
  };
  return objective;
}

}  // namespace tessera::models
