// SPDX-License-Identifier: Apache-2.0
// Decides whether a run continues from a checkpoint, and which differences are allowed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/data/dataset.h"
#include "tessera/engine/engine.h"
#include "tessera/engine/run_folder.h"
#include "tessera/planner/course.h"
#include "tessera/planner/plan.h"

namespace tessera::engine {

/// The choices of --resume.
struct ResumeFrom {
  enum class Kind : std::uint8_t {
    Newest,  ///< the newest complete checkpoint of the run folder, if it has one
    Never,   ///< start over; the old contents of the folder are moved aside
    Path     ///< the run or checkpoint at `path`, possibly of another program
  };
  Kind kind = Kind::Newest;
  std::filesystem::path path;
};
/// Reads "auto" (Newest), "never" or a path.
ResumeFrom resume_from(const std::string& word);

/// The point from which a run starts.
struct ResumePoint {
  std::optional<std::filesystem::path> checkpoint;       ///< empty: `copies`, or from the beginning
  std::shared_ptr<const checkpoint::Checkpoint> opened;  ///< `checkpoint`; null if there is none
  /// The state in the memory of hosts, if it is newer than every checkpoint.
  std::shared_ptr<const checkpoint::Checkpoint> copies;
  [[nodiscard]] bool exists() const { return checkpoint || copies != nullptr; }
  planner::Position position;
  std::string stopped_early;  ///< why the run stopped early there; empty if it did not
  std::vector<std::string>
      changes;  ///< accepted differences, "optimizer.params.lr: 0.001 -> 0.0003"
  /// The course from there, with the learning rates by scheduler.on_resume.
  planner::Course course = {};
};

/// Compares the configuration of a checkpoint with the plan. These may differ freely: ranks,
/// layout, micro-batch and accumulation, max_steps, eval, checkpoint, run, printing. These are
/// accepted and listed: optimizer parameters, scheduler, clipping, precision, global batch, the
/// contents of data.validation. Any other difference in model, tokenizer, data, sequence length,
/// seed or optimizer type throws Error{Config} with every difference and the remedies. For another
/// program's checkpoint only what its configuration contains is compared, and only a contradiction
/// of the model is refused.
std::vector<std::string> accepted_changes(const checkpoint::Meta& meta,
                                          const planner::Plan& plan,
                                          const data::Datasets& data);

/// Finds the checkpoint that `from` selects, or `copies` if it selects the newest and they are not
/// older, and checks that the run may continue from it. Checkpoints of other programs:
/// interop/foreign.h.
ResumePoint find_resume_point(const ResumeFrom& from,
                              const RunFolder& folder,
                              const planner::PlanWithData& plan,
                              const data::Datasets& data,
                              std::shared_ptr<const checkpoint::Checkpoint> copies = nullptr);

}  // namespace tessera::engine
