// SPDX-License-Identifier: Apache-2.0
// The layouts of the models other than the policy: rl.models.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "tessera/engine/open_model.h"
#include "tessera/planner/plan.h"
#include "tessera/rlhf/model_ranks.h"
#include "tessera/tasks/rl/options.h"

namespace tessera::planner {
struct DiskNeed;
}

namespace tessera::parallel {
struct Layout;
}

namespace tessera::rlhf {

/// The layout of a model that is only read.
struct ReadLayout {
  engine::ReadAs as = engine::ReadAs::F32;
  engine::Copies copies = engine::Copies::One;
  std::optional<ModelRanks> ranks;                  ///< nothing: the policy's groups of ranks
  std::optional<engine::OpenOffload> offload = {};  ///< of the weights
};
/// Returns whether the policy has the ranks of a model with groups of its own, and they divide.
bool has_ranks(const tasks::RlModel& model, const planner::Plan& policy);
/// Returns the ranks of a model with groups of its own, else nothing. `key`: of the model in
/// rl.models. Throws Error{Config} if the policy has no such ranks, or groups of `tensor` do not
/// divide them.
std::optional<ModelRanks> ranks_of(const tasks::RlModel& model,
                                   std::string_view key,
                                   const planner::Plan& policy);
/// The same for the whole layout of a model that is only read.
ReadLayout layout_of(const tasks::RlModel& model,
                     std::string_view key,
                     const planner::Plan& policy);
/// Returns "bf16, sharded", "fp32, whole on each data-parallel rank", or "fp32, sharded, 2 ranks
/// share its layers, on ranks 2 to 3 alone".
std::string text_of(const ReadLayout& layout, const planner::Plan& policy);
/// Returns the bytes of such a model on each of its ranks.
std::int64_t bytes_of(const models::Resolved& model,
                      const ReadLayout& layout,
                      const planner::Plan& policy);

/// Returns what of such a model rests on a disk, if its weights do. `key`: of the model in
/// rl.models; `name`: the model in errors.
std::optional<planner::DiskNeed> disk_need_of(const models::Resolved& model,
                                              const ReadLayout& layout,
                                              std::string_view key,
                                              const std::string& name,
                                              const planner::Plan& policy);

/// Returns the bytes, per rank, of a model that is only read and has all but its objective from the
/// trained model of `lender`.
std::int64_t bytes_beside_trunk(const models::Resolved& model, const planner::Plan& lender);

/// Returns "fp32, ZeRO stage 1, lora of rank 8, on ranks 2 to 3 alone" for a trained model.
/// `ranks`: those of its own, if it has any.
std::string text_of_trained(const planner::Plan& plan,
                            const std::optional<ModelRanks>& ranks,
                            const planner::Plan& policy);
/// Returns the layout of a trained model of a training with this global batch: that of the policy
/// with the changes of `model`, on `ranks` if it has ranks of its own, whose grid follows from the
/// model (parallel::ranks_in_a_row()).
parallel::Layout layout_of_trained(const tasks::RlModel& model,
                                   const std::optional<ModelRanks>& ranks,
                                   parallel::Layout policy,
                                   std::int64_t global_batch);

}  // namespace tessera::rlhf
