// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/objectives/labels.h"

#include <ATen/ATen.h>

#include "tessera/ops/cross_entropy.h"

namespace tessera::models {

void describe_label_smoothing(double& label_smoothing, config::Fields& fields) {
  fields.field("label_smoothing",
               label_smoothing,
               {.text = "Share of the target spread over all classes, in training only.",
                .min = 0,
                .max = 1});
}

double number_of_labels(const at::Tensor& labels) {
  if (labels.is_meta()) return static_cast<double>(labels.numel());
  return labels.ne(ops::kIgnoreLabel).sum().item<double>();
}

}  // namespace tessera::models
