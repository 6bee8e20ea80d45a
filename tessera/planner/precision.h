// SPDX-License-Identifier: Apache-2.0
// Resolves the blocks fp16, bf16, amp and torch_autocast: the dtypes of weights, masters and
// moments, and loss scaling.
#pragma once

#include <string>
#include <vector>

#include "tessera/config/fields.h"
#include "tessera/planner/recipe.h"

namespace tessera::parallel {
struct Layout;
}

namespace tessera::planner {

/// Sets the dtypes of the layout, whose zero_stage must be known, and the loss scaling of the
/// recipe. Errors of the blocks are added to `problems`. check_written() reports two blocks that
/// are enabled together.
///
/// DeepSpeed's scaler has another rule at ZeRO stage 0. It is used if that stage is requested;
/// without a zero_optimization block, one and four ranks both use the rule of stage 1, so that the
/// same file gives the same losses.
void resolve_precision(const TrainConfig& config,
                       parallel::Layout& layout,
                       Recipe& recipe,
                       std::vector<std::string>& notes,
                       config::Problems& problems,
                       const config::Origins& origins);

/// "fp16 with fp32 masters, loss scale 65536 (dynamic)".
std::string precision_text(const parallel::Layout& layout, const Recipe& recipe);

}  // namespace tessera::planner
