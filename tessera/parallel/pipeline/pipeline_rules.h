// SPDX-License-Identifier: Apache-2.0
// The requirements of pipeline stages (parallel.pipeline) on the rest of a configuration.
#pragma once

#include <cstdint>

#include "tessera/config/fields.h"
#include "tessera/optim/options.h"
#include "tessera/parallel/options.h"

namespace tessera::parallel {

/// Checks the keys of the pipeline against the number of micro-batches of a step, the other forms
/// of parallelism and the optimizer. Problems have the place of the key to change.
void check_pipeline(const ParallelOptions& parallel,
                    std::int64_t micros,
                    const optim::OptimizerOptions& optimizer,
                    config::Problems& problems,
                    const config::Origins& origins);

}  // namespace tessera::parallel
