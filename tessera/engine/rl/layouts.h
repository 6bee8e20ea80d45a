// SPDX-License-Identifier: Apache-2.0
// The layouts of the models beside a policy: rl.models.
#pragma once

#include <cstdint>

#include "tessera/engine/open_model.h"
#include "tessera/planner/train_config.h"
#include "tessera/tasks/rl/options.h"

namespace tessera::engine::rl {

/// The layout of a model that is only read.
struct ReadLayout {
  ReadAs as = ReadAs::F32;
  Copies copies = Copies::One;
};
ReadLayout layout_of(const tasks::RlModel& model, const planner::Plan& policy);
/// Returns "bf16, sharded" or "fp32, whole on each data-parallel rank".
std::string text_of(const ReadLayout& layout, const planner::Plan& policy);
/// Returns the bytes of such a model on all ranks together, divided by their number.
std::int64_t bytes_of(const models::Resolved& model,
                      const ReadLayout& layout,
                      const planner::Plan& policy);

/// Returns the bytes, per rank, of a model that is only read and has all but its objective from the
/// trained model of `lender`.
std::int64_t bytes_beside_trunk(const models::Resolved& model, const planner::Plan& lender);

/// Returns "fp32, ZeRO stage 1, lora of rank 8" for a trained model.
std::string text_of_trained(const planner::Plan& plan);
/// Gives the plan of a trained model, a copy of the policy's, its own layout.
void apply_layout(const tasks::RlModel& model, planner::Plan& plan);

}  // namespace tessera::engine::rl
