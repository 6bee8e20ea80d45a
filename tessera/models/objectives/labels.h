// SPDX-License-Identifier: Apache-2.0
// Options, checks and counts of objectives whose targets are class labels.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/config/fields.h"
#include "tessera/nn/block.h"

namespace tessera::models {

/// The option "label_smoothing".
void describe_label_smoothing(double& label_smoothing, config::Fields& fields);
/// The option "num_labels"; `text` says what has the labels.
void describe_num_labels(std::int64_t& num_labels, const char* text, config::Fields& fields);
/// The option "labels", the names of the classes, which another program's config.json gets.
void describe_label_names(std::vector<std::string>& labels, config::Fields& fields);
/// Adds a problem unless there is a name for each class, or none.
void check_label_names(const std::vector<std::string>& labels,
                       std::int64_t num_labels,
                       config::Problems& problems,
                       const config::Origins& origins);
/// The number of labels other than -100; on meta all of them.
double number_of_labels(const at::Tensor& labels);

/// What the loss of a label is made of.
struct ClassLoss {
  double label_smoothing = 0.0;
  std::vector<double> class_weights;  ///< of the labels' losses; empty: 1 each
  double focal_gamma = 0.0;           ///< 0: cross-entropy
  /// The options "label_smoothing", "class_weights" and "focal_gamma".
  void describe(config::Fields& fields);
  /// Adds problems of a model with that many classes.
  void check(std::int64_t num_labels,
             config::Problems& problems,
             const config::Origins& origins) const;
};
/// What the terms of add_class_terms() are divided by: the number of labels, and where there are
/// class weights the sum of theirs.
std::vector<double> class_denominators(const at::Tensor& labels, const ClassLoss& loss);
/// Adds the terms "loss" and "accuracy", the number of largest logits that are the label's. The
/// loss of a label of class c, to which the model gives the probability p, is -w_c ln p, whose mean
/// is by the weights (as torch's CrossEntropyLoss), or the focal loss -w_c (1 - p)^gamma ln p,
/// whose mean is by the number of labels. logits [N, L], int64 labels [N], -100 ignored. Label
/// smoothing acts in training alone. Error{Data} for a label outside of [0, L); messages call a row
/// `what`: "sample".  Source: Lin et al. 2017, "Focal loss for dense object detection".
void add_class_terms(nn::Outcome& out,
                     const at::Tensor& logits_NL,
                     const at::Tensor& labels_N,
                     const ClassLoss& loss,
                     bool training,
                     const char* what);

}  // namespace tessera::models
