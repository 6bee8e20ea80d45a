// SPDX-License-Identifier: Apache-2.0
// Buckets and limits that are smaller than a parameter: allowed, but noted.
#pragma once

#include <string>
#include <vector>

#include "tessera/config/fields.h"
#include "tessera/nn/block.h"
#include "tessera/parallel/zero_options.h"

namespace tessera::parallel {

struct Layout;

/// Notes about bucket sizes and limits, given by the user, that are smaller than the model's
/// largest parameter: what happens then, with both numbers.
std::vector<std::string> bucket_notes(const ZeroOptions& zero,
                                      const Layout& layout,
                                      const nn::Model& model,
                                      const config::Origins& origins);

}  // namespace tessera::parallel
