// SPDX-License-Identifier: Apache-2.0
// What the blocks fp16, bf16, amp and torch_autocast come to: types of weights, masters and
// moments, and how the loss is scaled.
#pragma once

#include "tessera/config/fields.h"
#include "tessera/planner/train_config.h"

namespace tessera::planner {

/// Sets what the plan says of types and loss scaling; its zero_stage is known. Problems of the
/// blocks go to `problems`, what the user should be told to plan.notes. Two blocks that are
/// switched on together are check_written()'s.
///
/// DeepSpeed's scaler has another rule at ZeRO stage 0. It is followed where that stage is asked
/// for; without a zero_optimization block one and four ranks have the rule of stage 1, so that the
/// same file gives the same losses.
void resolve_precision(Plan& plan, config::Problems& problems, const config::Origins& origins);

/// "fp16 with fp32 masters, loss scale 65536 (dynamic)".
std::string precision_text(const Plan& plan);

}  // namespace tessera::planner
