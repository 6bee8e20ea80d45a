// SPDX-License-Identifier: Apache-2.0
// The layouts that a plan refuses for a model independent of its sizes, with the reasons.
#pragma once

#include <string>
#include <vector>

#include "tessera/models/family.h"

namespace tessera::report {

struct LayoutLimit {
  std::string layout;  ///< configuration keys: "parallel.sequence"
  std::string reason;
};
/// The refused layouts among all modes of tensor parallelism, parallel.sequence, and both modes of
/// parallel.context. Makes the model's blocks once.
std::vector<LayoutLimit> layout_limits(const models::Resolved& model,
                                       const models::ModelOptions& options);

/// docs/tables/layouts.md: the limits of every family, with its first preset, under every objective
/// that it supports.
std::string layouts_markdown();

}  // namespace tessera::report
