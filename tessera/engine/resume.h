// SPDX-License-Identifier: Apache-2.0
// Whether a run goes on from a checkpoint, and what may differ.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/data/dataset.h"
#include "tessera/engine/engine.h"
#include "tessera/engine/run_folder.h"
#include "tessera/planner/train_config.h"

namespace tessera::engine {

/// Where a run starts.
struct ResumePoint {
  std::optional<std::filesystem::path> checkpoint;  ///< nothing: from the beginning
  Position position;
  std::vector<std::string>
      changes;  ///< accepted differences, "optimizer.params.lr: 0.001 -> 0.0003"
};

/// Compares the configuration of a checkpoint with the plan. Free: ranks, layout, micro-batch and
/// accumulation, max_steps, eval, checkpoint, run, printing. Accepted and listed: optimizer
/// parameters, scheduler, clipping, precision, global batch, the contents of data.validation.
/// Anything else in model, tokenizer, data, sequence length, seed or optimizer type is
/// Error{Config} with every difference and the ways on. Of another program's checkpoint only what
/// its configuration says is compared, and nothing but a contradiction of the model refused.
std::vector<std::string> accepted_changes(const checkpoint::Meta& meta,
                                          const planner::Plan& plan,
                                          const data::Datasets& data);

/// `how`: "auto" (go on if the folder has a complete checkpoint), "never" (moves old contents
/// aside), or a run or checkpoint, of another program too (interop/formats/foreign.h).
ResumePoint find_resume_point(const std::string& how,
                              const RunFolder& folder,
                              const planner::Plan& plan,
                              const data::Datasets& data);

}  // namespace tessera::engine
