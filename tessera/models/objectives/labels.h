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
/// Adds the terms "loss", the cross-entropy, and "accuracy", the number of largest logits that are
/// the label's. logits [N, L], int64 labels [N], -100 ignored. Error{Data} for a label outside of
/// [0, L); messages call a row `what`: "sample".
void add_class_terms(nn::Outcome& out,
                     const at::Tensor& logits_NL,
                     const at::Tensor& labels_N,
                     double label_smoothing,
                     const char* what);

}  // namespace tessera::models
