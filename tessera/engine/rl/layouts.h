// SPDX-License-Identifier: Apache-2.0
// The layouts of the models beside a policy: rl.models.
#pragma once

#include <cstdint>
#include <optional>

#include "tessera/engine/open_model.h"
#include "tessera/mesh/mesh.h"
#include "tessera/planner/train_config.h"
#include "tessera/tasks/rl/options.h"

namespace tessera::engine::rl {

/// Consecutive ranks of those that learn, of which `tensor` share every layer of a model.
struct ReadRanks {
  int first = 0, count = 1, tensor = 1;
};
/// The layout of a model that is only read.
struct ReadLayout {
  ReadAs as = ReadAs::F32;
  Copies copies = Copies::One;
  std::optional<ReadRanks> ranks;  ///< nothing: the policy's groups of ranks
};
/// Returns whether the policy has the ranks of a model with groups of its own, and they divide.
bool has_ranks(const tasks::RlReadModel& model, const planner::Plan& policy);
/// Throws Error{Config} if the policy has no such ranks, or groups of `tensor` do not divide them.
ReadLayout layout_of(const tasks::RlReadModel& model, const planner::Plan& policy);
/// Returns the mesh of the model's ranks.
mesh::Mesh mesh_of(const ReadRanks& ranks, const models::Resolved& model);
/// Returns "bf16, sharded", "fp32, whole on each data-parallel rank", or "fp32, sharded, 2 ranks
/// share its layers, on ranks 2 to 3 alone".
std::string text_of(const ReadLayout& layout, const planner::Plan& policy);
/// Returns the bytes of such a model on all ranks together, divided by the number of ranks of the
/// policy.
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
