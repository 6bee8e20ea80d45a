// SPDX-License-Identifier: Apache-2.0
// Options and counts of objectives whose targets are class labels.
#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/config/fields.h"

namespace tessera::models {

/// The option "label_smoothing".
void describe_label_smoothing(double& label_smoothing, config::Fields& fields);
/// The number of labels other than -100; on meta all of them.
double number_of_labels(const at::Tensor& labels);

}  // namespace tessera::models
