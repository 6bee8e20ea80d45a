// SPDX-License-Identifier: Apache-2.0
// The memory and the disk space of masters and optimizer states (shard_store.h), and of their
// updates.
#pragma once

#include <cstdint>
#include <functional>

#include "tessera/optim/rule.h"
#include "tessera/parallel/planned_buffers.h"

namespace tessera::parallel {

/// Bytes of a rank.
struct StateBytes {
  std::int64_t memory = 0;  ///< between updates and during one
  std::int64_t disk = 0;    ///< of units that rest there, in whole blocks
  /// The bytes in fp32 that a save reads from the disk, also of working weights.
  std::int64_t saved_from_disk = 0;
  /// Values that are stored in fewer bits than checkpoints have, in fp32.
  std::int64_t widened_by_saves = 0;
};
/// For a rank of the stage. `frozen_in_saves`: checkpoints contain frozen parameters. `apart`: says
/// whether the weights of a buffer are in other memory than its states (ShardStore), so that fp32
/// masters are separate; empty: none are. Pure.
StateBytes state_bytes(const PlannedStage& stage,
                       const Layout& layout,
                       const optim::Rule& rule,
                       bool frozen_in_saves,
                       const std::function<bool(const PlannedBuffer&)>& apart = {});

/// Bytes of the states of a whole parameter in a checkpoint.
std::int64_t saved_state_bytes(const optim::Rule& rule, const ParamInfo& info);

/// True if the rule keeps states by rows or columns of the parameter, which do not rest on a disk.
bool keeps_lines(const optim::Rule& rule, const ParamInfo& info);

}  // namespace tessera::parallel
