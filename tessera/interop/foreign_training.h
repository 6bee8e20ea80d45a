// SPDX-License-Identifier: Apache-2.0
// A training that another program saved, as a checkpoint of ours: any layout loads any part of it.
#pragma once

#include <filesystem>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/interop/formats/foreign.h"
#include "tessera/models/family.h"
#include "tessera/planner/train_config.h"

namespace tessera::interop {

/// The tensors under our names and in our layouts, read when they are asked for; step, position,
/// skipped steps and the loss scaler's state. meta().extra.imported says what it was, meta().config
/// has what its program's configuration says of optimizer, schedule and clipping. Where it does not
/// say how many samples it saw, each step took `global_batch`. Error{Format} lists the names that
/// do not fit the model.
checkpoint::Checkpoint as_checkpoint(const Foreign& foreign,
                                     const models::Family& family,
                                     const models::Resolved& model,
                                     std::int64_t sequence_length,
                                     std::int64_t global_batch);

/// What stands at `path`: a checkpoint of ours, or another program's for the plan's model and
/// optimizer. Error{Config} where its moments are another rule's or lack one that the optimizer
/// keeps, and where checkpoint.load_universal asks for a universal checkpoint that is not there;
/// Error{Format} where it has no optimizer's state at all and the optimizer keeps some.
checkpoint::Checkpoint open_training(const std::filesystem::path& path, const planner::Plan& plan);

}  // namespace tessera::interop
