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
#include "tessera/models/objective.h"
#include "tessera/models/objectives/labels.h"
#include "tessera/nn/context_parallel/context_parallel.h"
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
  Distilled(std::unique_ptr<nn::Block> inner,
            TeacherLogits teacher,
            DistillWeights weights,
            DistillForm form)
      : block_(std::move(inner)),
        inner_(dynamic_cast<nn::Objective*>(block_.get())),
        teacher_(std::move(teacher)),
        weights_(weights),
        form_(std::move(form)) {
    TESSERA_ASSERT(inner_ != nullptr);
  }

  void declare(nn::Params& params) override { inner_->declare(params); }

  nn::Outcome forward(nn::Flow in, const nn::Batch& batch, nn::StepContext& context) override {
    if (!context.training()) return inner_->forward(std::move(in), batch, context);
    const nn::Batch unlabelled = without_labels(batch);
    nn::Outcome out = inner_->forward(in, batch, context);
    for (nn::Term& term : out.terms)
      term.weight *= weights_.label_weight.value_or(1.0 - weights_.alpha);
    const at::Tensor student =
        inner_->forward(std::move(in), unlabelled, context).outputs.at("logits");
    // Memory is measured with tensors that have no values.
    const at::Tensor teacher = student.is_meta()
                                   ? student.detach()
                                   : taught(unlabelled, batch, context).to(student.device());
    check_dimensions(student, teacher);
    add_terms(out,
              student,
              teacher,
              batch.tensor(label_of(batch)),
              static_cast<int>(inner_->denominators(batch).size()));
    return out;
  }

  [[nodiscard]] bool works_by_token() const override { return inner_->works_by_token(); }
  [[nodiscard]] std::string grid_obstacle() const override { return inner_->grid_obstacle(); }
  [[nodiscard]] bool reads_whole_samples() const override { return inner_->reads_whole_samples(); }

  [[nodiscard]] std::vector<double> denominators(const nn::Batch& batch) const override {
    std::vector<double> out = inner_->denominators(batch);
    const at::Tensor& labels = batch.tensor(label_of(batch));
    if (form_.predictions != Predictions::Classes) {
      out.push_back(static_cast<double>(labels.numel()));
    } else if (form_.heads.empty()) {
      out.push_back(number_of_labels(labels));
    }
    for (std::int64_t h = 0; h < std::ssize(form_.heads); ++h)
      out.push_back(number_of_labels(labels.select(1, h)));
    return out;
  }
  [[nodiscard]] std::int64_t samples_at_once(const nn::Batch& batch) const override {
    return inner_->samples_at_once(batch);
  }

 private:
  /// The teacher's logits for what this rank has logits for. If ranks share the tokens of a sample,
  /// the teacher reads all of them on every rank.
  [[nodiscard]] at::Tensor taught(const nn::Batch& unlabelled,
                                  const nn::Batch& batch,
                                  const nn::StepContext& context) const {
    if (!context.shares_tokens()) return teacher_(unlabelled);
    const nn::ContextParallel& shared = *context.context_parallel;
    nn::Batch whole = unlabelled;
    for (const char* const name : {"input_ids", "token_type_ids", "decoder_input_ids"}) {
      if (whole.has(name)) whole.set(name, nn::all_tokens(whole.tensor(name), shared));
    }
    const at::Tensor logits = teacher_(whole);
    const bool of_tokens = batch.has("labels") && !inner_->reads_whole_samples();
    return of_tokens ? nn::own_tokens(logits, shared) : logits;
  }

  /// Adds one term, or one for each label head; `denominator` is the number of earlier ones.
  void add_terms(nn::Outcome& out,
                 const at::Tensor& student,
                 const at::Tensor& teacher,
                 const at::Tensor& labels,
                 int denominator) const {
    const auto add = [&](const std::string& name, double weight, const at::Tensor& sum) {
      out.terms.push_back({.name = name + "distillation",
                           .sum = sum,
                           .denominator = denominator++,
                           .weight = weights_.alpha * weight});
    };
    if (form_.predictions == Predictions::Flags) {
      add("", 1.0, divergence_of_flags(student, teacher));
    } else if (form_.predictions == Predictions::Numbers) {
      add("", 1.0, (student.to(at::kDouble) - teacher.to(at::kDouble)).square().sum());
    } else if (form_.heads.empty()) {
      add("", 1.0, divergence(student, teacher, labels));
    }
    for (std::int64_t h = 0; h < std::ssize(form_.heads); ++h) {
      const DistillForm::Head& head = form_.heads[static_cast<std::size_t>(h)];
      add(head.name + "_",
          head.weight,
          divergence(student.narrow(-1, head.first, head.size),
                     teacher.narrow(-1, head.first, head.size),
                     labels.select(1, h)));
    }
  }

  void check_dimensions(const at::Tensor& student, const at::Tensor& teacher) const {
    const auto rows = [](const at::Tensor& logits) {
      return logits.sizes().slice(0, static_cast<std::size_t>(logits.dim()) - 1);
    };
    TESSERA_REQUIRE(
        teacher.dim() == student.dim() && rows(teacher) == rows(student),
        Shape,
        fmt::format("the teacher has logits for {} rows of {} dimensions, and the student for {} "
                    "rows of {}",
                    teacher.numel() / std::max<std::int64_t>(1, teacher.size(-1)),
                    teacher.dim(),
                    student.numel() / std::max<std::int64_t>(1, student.size(-1)),
                    student.dim()),
        "choose a teacher of the same task");
    const bool may_differ = form_.predictions == Predictions::Classes && form_.heads.empty();
    TESSERA_REQUIRE(
        may_differ || teacher.size(-1) == student.size(-1),
        Shape,
        fmt::format(
            "the teacher has {} outputs, and the student {}", teacher.size(-1), student.size(-1)),
        "choose a teacher that was trained with the same labels");
  }

  /// The sum over the rows that have a label.
  [[nodiscard]] at::Tensor divergence(const at::Tensor& student,
                                      const at::Tensor& teacher,
                                      const at::Tensor& labels) const {
    const double t = weights_.temperature;
    if (student.is_meta()) return at::log_softmax(student / t, -1).sum();
    const at::Tensor rows_N = labels.flatten().ne(ops::kIgnoreLabel).nonzero().squeeze(1);
    const std::int64_t width = std::min(teacher.size(-1), student.size(-1));
    const at::Tensor wanted_NV = at::log_softmax(rows_of(teacher, rows_N, width) / t, -1);
    const at::Tensor given_NV = at::log_softmax(rows_of(student, rows_N, width) / t, -1);
    return (wanted_NV.exp() * (wanted_NV - given_NV)).sum(at::kDouble) * (t * t);
  }

  /// The same for flags, whose two outcomes have the log-probabilities log sigmoid(+-logit / T).
  [[nodiscard]] at::Tensor divergence_of_flags(const at::Tensor& student,
                                               const at::Tensor& teacher) const {
    const double t = weights_.temperature;
    at::Tensor sum;
    for (const double sign : {1.0, -1.0}) {
      const at::Tensor wanted = at::log_sigmoid(teacher.to(at::kFloat) * (sign / t)),
                       given = at::log_sigmoid(student.to(at::kFloat) * (sign / t));
      const at::Tensor part = (wanted.exp() * (wanted - given)).sum(at::kDouble);
      sum = sum.defined() ? sum + part : part;
    }
    return sum * (t * t);
  }

  std::unique_ptr<nn::Block> block_;
  nn::Objective* inner_;  ///< the same object
  TeacherLogits teacher_;
  DistillWeights weights_;
  DistillForm form_;
};

}  // namespace

std::optional<DistillForm> distill_form(const ObjectiveChoice& objective) {
  if (!traits_of(objective.name).distills) return std::nullopt;
  DistillForm out;
  const json::Value* const problem = objective.options.find("problem_type");
  if (problem != nullptr && problem->is_string()) {
    if (problem->as_string() == "multi_label_classification") out.predictions = Predictions::Flags;
    if (problem->as_string() == "regression") out.predictions = Predictions::Numbers;
  }
  const json::Value* const heads = objective.options.find("heads");
  if (heads == nullptr || !heads->is_array()) return out;
  std::int64_t first = 0;
  // The objective has checked the heads.
  for (const json::Value& one : heads->items()) {
    const json::Value* const weight = one.find("weight");
    DistillForm::Head head{.name = one.find("name")->as_string(),
                           .first = first,
                           .size = std::ssize(one.find("labels")->items()),
                           .weight = weight == nullptr ? 1.0 : weight->as_double()};
    first += head.size;
    out.heads.push_back(std::move(head));
  }
  return out;
}

nn::BlockSpec distilled(nn::BlockSpec objective,
                        TeacherLogits teacher,
                        DistillWeights weights,
                        DistillForm form) {
  objective.make = [make = std::move(objective.make),
                    teacher = std::move(teacher),
                    weights,
                    form = std::move(form)] {
    return std::make_unique<Distilled>(make(), teacher, weights, form);
  };
  return objective;
}

}  // namespace tessera::models
