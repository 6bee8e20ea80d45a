// SPDX-License-Identifier: Apache-2.0
// The product of the sizes in the section `parallel`, by which the ranks must divide.
#pragma once

#include <cstdint>

#include "tessera/config/fields.h"
#include "tessera/config/json.h"
#include "tessera/parallel/options.h"

namespace tessera::parallel {

/// ParallelOptions::ranks_per_model() of a configuration with expanded short forms; 1 if
/// it cannot be read.
std::int64_t ranks_per_model(const json::Value& source);

/// True if none of the sizes that ranks_per_model() multiplies was reported as wrong, so that
/// values derived from the product are meaningful.
bool sizes_are_known(const config::Problems& problems);
/// Reports the whole product if the sizes do not divide `ranks`.
void check_product(const ParallelOptions& options,
                   int ranks,
                   config::Problems& problems,
                   const config::Origins& origins);

}  // namespace tessera::parallel
