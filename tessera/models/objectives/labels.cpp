// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/objectives/labels.h"

#include <algorithm>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/ops/cross_entropy.h"

namespace tessera::models {
namespace {

void check_labels(const at::Tensor& labels_N, std::int64_t num_labels, const char* what) {
  const at::Tensor wrong_N = labels_N.ne(ops::kIgnoreLabel)
                                 .logical_and(labels_N.lt(0).logical_or(labels_N.ge(num_labels)));
  if (!wrong_N.any().item<bool>()) return;
  const auto first = wrong_N.to(at::kByte).argmax().item<std::int64_t>();
  throw Error(
      Error::Kind::Data,
      fmt::format("the label {} of {} {} of a micro-batch is not one of the {} labels of the "
                  "model",
                  labels_N[first].item<std::int64_t>(),
                  what,
                  first,
                  num_labels),
      fmt::format("give labels from 0 to {}, -100 where one is to be ignored, or raise "
                  "num_labels",
                  num_labels - 1));
}

}  // namespace

void describe_label_smoothing(double& label_smoothing, config::Fields& fields) {
  fields.field("label_smoothing",
               label_smoothing,
               {.text = "Share of the target spread over all classes, in training only.",
                .min = 0,
                .max = 1});
}

void describe_num_labels(std::int64_t& num_labels, const char* text, config::Fields& fields) {
  fields.field("num_labels", num_labels, {.text = text, .min = 1, .max = 1e6});
}

void describe_label_names(std::vector<std::string>& labels, config::Fields& fields) {
  fields.field("labels",
               labels,
               {.text = "Names of the classes in the order of their ids.", .default_text = "none"});
}

void check_label_names(const std::vector<std::string>& labels,
                       std::int64_t num_labels,
                       config::Problems& problems,
                       const config::Origins& origins) {
  const auto names = static_cast<std::int64_t>(labels.size());
  if (names == 0 || names == num_labels) return;
  problems.add(origins.place("labels"),
               "labels",
               fmt::format("{} names for {} classes", names, num_labels),
               "name every class, or none");
}

double number_of_labels(const at::Tensor& labels) {
  if (labels.is_meta()) return static_cast<double>(labels.numel());
  return labels.ne(ops::kIgnoreLabel).sum().item<double>();
}

void ClassLoss::describe(config::Fields& fields) {
  describe_label_smoothing(label_smoothing, fields);
  fields.field("class_weights",
               class_weights,
               {.text = "Weight of the loss of each class, in the order of their ids.",
                .default_text = "1 each"});
  fields.field("focal_gamma",
               focal_gamma,
               {.text = "Exponent of the focal loss -(1-p)^gamma ln p; 0 is the cross-entropy.",
                .min = 0,
                .max = 100});
}

void ClassLoss::check(std::int64_t num_labels,
                      config::Problems& problems,
                      const config::Origins& origins) const {
  const bool right =
      class_weights.empty() || (std::ssize(class_weights) == num_labels &&
                                std::ranges::all_of(class_weights, [](double w) { return w > 0; }));
  if (!right) {
    problems.add(origins.place("class_weights"),
                 "class_weights",
                 fmt::format("{} weights for {} classes", class_weights.size(), num_labels),
                 "give each class a weight above 0");
  }
  if (focal_gamma > 0 && label_smoothing > 0) {
    problems.add(origins.place("label_smoothing"),
                 "label_smoothing",
                 "label_smoothing and focal_gamma are both given",
                 "keep one of them");
  }
}

std::vector<double> class_denominators(const at::Tensor& labels, const ClassLoss& loss) {
  const double count = number_of_labels(labels);
  if (loss.class_weights.empty()) return {count};
  if (labels.is_meta()) return {count, count};
  const at::Tensor known = labels.masked_select(labels.ne(ops::kIgnoreLabel));
  const at::Tensor weights = at::tensor(loss.class_weights, at::kDouble);
  // add_class_terms() reports labels outside the classes.
  const at::Tensor sound = known.masked_select(known.ge(0).logical_and(known.lt(weights.size(0))));
  return {count, weights.index_select(0, sound).sum().item<double>()};
}

void add_class_terms(nn::Outcome& out,
                     const at::Tensor& logits_NL,
                     const at::Tensor& labels_N,
                     const ClassLoss& loss,
                     bool training,
                     const char* what) {
  if (!labels_N.is_meta()) check_labels(labels_N, logits_NL.size(1), what);
  at::Tensor weights;
  if (!loss.class_weights.empty())
    weights = at::tensor(loss.class_weights, at::kDouble).to(logits_NL.device());
  const bool focal = loss.focal_gamma > 0;
  at::Tensor sum;
  if (focal) {
    const at::Tensor logp_NL = at::log_softmax(logits_NL.to(at::kDouble), 1);
    const at::Tensor known_N = labels_N.ne(ops::kIgnoreLabel);
    const at::Tensor label_N = labels_N.clamp_min(0);
    const at::Tensor logp_N = logp_NL.gather(1, label_N.unsqueeze(1)).squeeze(1);
    at::Tensor loss_N = -(1 - logp_N.exp()).pow(loss.focal_gamma) * logp_N * known_N;
    if (weights.defined()) loss_N = loss_N * weights.gather(0, label_N);
    sum = loss_N.sum();
  } else {
    sum = at::cross_entropy_loss(logits_NL.to(at::kDouble),
                                 labels_N,
                                 weights,
                                 at::Reduction::Sum,
                                 ops::kIgnoreLabel,
                                 training ? loss.label_smoothing : 0.0);
  }
  const at::Tensor correct = logits_NL.detach().argmax(1).eq(labels_N).sum(at::kDouble);
  const int by_weight = weights.defined() && !focal ? 1 : 0;
  out.terms = {{.name = "loss", .sum = sum, .denominator = by_weight},
               {.name = "accuracy", .sum = correct, .weight = 0.0}};
}

}  // namespace tessera::models
