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

/// Describes the option "label_smoothing".
void describe_label_smoothing(double& label_smoothing, config::Fields& fields);
/// Describes the option "num_labels"; `text` says what has the labels.
void describe_num_labels(std::int64_t& num_labels, const char* text, config::Fields& fields);
/// Describes the option "labels", the names of the classes, which are written to another program's
/// config.json.
void describe_label_names(std::vector<std::string>& labels, config::Fields& fields);
/// Adds a problem unless every class has a name, or none has.
void check_label_names(const std::vector<std::string>& labels,
                       std::int64_t num_labels,
                       config::Problems& problems,
                       const config::Origins& origins);
/// The number of labels other than -100; on meta tensors all of them.
double number_of_labels(const at::Tensor& labels);

/// The options of the loss of a label.
struct ClassLoss {
  double label_smoothing = 0.0;
  std::vector<double> class_weights;  ///< weight of each class; empty: 1
  double focal_gamma = 0.0;           ///< 0: cross-entropy
  /// Describes the options "label_smoothing", "class_weights" and "focal_gamma".
  void describe(config::Fields& fields);
  /// Adds a problem for each option that does not fit `num_labels` classes.
  void check(std::int64_t num_labels,
             config::Problems& problems,
             const config::Origins& origins) const;
};
/// The denominators of the terms of add_class_terms(): the number of labels and, with class
/// weights, the sum of the labels' weights.
std::vector<double> class_denominators(const at::Tensor& labels, const ClassLoss& loss);
/// Adds the terms "loss" and "accuracy", the number of samples whose largest logit is the label's.
/// The loss of a label of class c with predicted probability p is -w_c ln p, whose mean is weighted
/// (as in torch's CrossEntropyLoss), or the focal loss -w_c (1 - p)^gamma ln p, whose mean is over
/// the number of labels. logits [N, L], int64 labels [N], -100 ignored. Label smoothing applies
/// only in training. Throws Error{Data} for a label outside [0, L); messages call a row `what`:
/// "sample". Source: Lin et al. 2017, "Focal loss for dense object detection".
void add_class_terms(nn::Outcome& out,
                     const at::Tensor& logits_NL,
                     const at::Tensor& labels_N,
                     const ClassLoss& loss,
                     bool training,
                     const char* what);

}  // namespace tessera::models
