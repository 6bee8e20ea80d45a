// SPDX-License-Identifier: Apache-2.0
// Rules of zero_optimization: groups that shard weights, and error feedback of gradients. Problems
// have the place of the key to change.
#pragma once

#include <optional>
#include <string_view>

#include "tessera/config/fields.h"
#include "tessera/optim/options.h"
#include "tessera/parallel/options.h"
#include "tessera/parallel/reduction_options.h"
#include "tessera/parallel/zero_options.h"

namespace tessera::parallel {

/// The size of groups that shard the weights must divide the ranks. One rank shards nothing.
void check_shard_group(const ZeroOptions& zero,
                       int ranks,
                       config::Problems& problems,
                       const config::Origins& origins);

/// Completes the keys of error feedback and returns it; nothing if none of them is given.
std::optional<FeedbackOptions> complete_feedback(ZeroOptions& options);
/// What error feedback requires. `wide`: the dtype in which gradients travel, if it is wider than 8
/// bits.
void check_feedback(const ParallelOptions& parallel,
                    const optim::OptimizerOptions& optimizer,
                    std::string_view wide,
                    config::Problems& problems,
                    const config::Origins& origins);

}  // namespace tessera::parallel
