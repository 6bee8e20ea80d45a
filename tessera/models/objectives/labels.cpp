// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/objectives/labels.h"

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
  throw Error(Error::Kind::Data,
              fmt::format("the label {} of {} {} of a micro-batch is none of the {} labels of the "
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

void add_class_terms(nn::Outcome& out,
                     const at::Tensor& logits_NL,
                     const at::Tensor& labels_N,
                     double label_smoothing,
                     const char* what) {
  if (!labels_N.is_meta()) check_labels(labels_N, logits_NL.size(1), what);
  const at::Tensor loss = at::cross_entropy_loss(logits_NL.to(at::kDouble),
                                                 labels_N,
                                                 /*weight=*/{},
                                                 at::Reduction::Sum,
                                                 ops::kIgnoreLabel,
                                                 label_smoothing);
  const at::Tensor correct = logits_NL.detach().argmax(1).eq(labels_N).sum(at::kDouble);
  out.terms = {{.name = "loss", .sum = loss}, {.name = "accuracy", .sum = correct, .weight = 0.0}};
}

}  // namespace tessera::models
