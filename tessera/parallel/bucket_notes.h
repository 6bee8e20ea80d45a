// SPDX-License-Identifier: Apache-2.0
// Buckets and limits that are smaller than a parameter: allowed, but noted.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/config/fields.h"
#include "tessera/nn/block.h"
#include "tessera/parallel/zero_options.h"

namespace tessera::parallel {

/// The numbers of a Layout on which the notes depend.
struct BucketLayout {
  std::int64_t tensor_ranks = 1, data_ranks = 1;
  bool gathers_weights = false;
  std::int64_t persistence_threshold = 0, persistent = 0;
};

/// Notes about bucket sizes and limits, given by the user, that are smaller than the model's
/// largest parameter: what happens then, with both numbers.
std::vector<std::string> bucket_notes(const ZeroOptions& zero,
                                      const BucketLayout& layout,
                                      const nn::Model& model,
                                      const config::Origins& origins);

}  // namespace tessera::parallel
