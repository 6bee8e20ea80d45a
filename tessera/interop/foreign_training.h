// SPDX-License-Identifier: Apache-2.0
// Presents a training that another program saved as a tessera checkpoint, of which any layout loads
// any part.
#pragma once

#include <filesystem>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/interop/foreign.h"
#include "tessera/models/family.h"

namespace tessera::planner {
class Plan;
}

namespace tessera::interop {

/// The tensors have tessera's names and layouts and are read on demand; also converted are step,
/// position, skipped steps and the loss scaler's state. meta().extra.imported describes the origin;
/// meta().config has the optimizer, schedule and clipping of the program's configuration. If the
/// checkpoint does not contain the number of samples, each step counts as `global_batch`. Throws
/// Error{Format} that lists the names that do not fit the model.
checkpoint::Checkpoint as_checkpoint(const Foreign& foreign,
                                     const models::Family& family,
                                     const models::Resolved& model,
                                     std::int64_t sequence_length,
                                     std::int64_t global_batch);

/// Opens the checkpoint at `path`: tessera's, or another program's for the plan's model and
/// optimizer. Throws Error{Config} if its moments belong to another rule or lack one that the
/// optimizer keeps, and if checkpoint.load_universal requires a universal checkpoint that does not
/// exist; throws Error{Format} if it has no optimizer state but the optimizer keeps some.
checkpoint::Checkpoint open_training(const std::filesystem::path& path, const planner::Plan& plan);

}  // namespace tessera::interop
