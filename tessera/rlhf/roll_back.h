// SPDX-License-Identifier: Apache-2.0
// Sends a run of the task rl back to a checkpoint from before an alarm (rl.on_alarm: roll_back).
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "tessera/base/error.h"
#include "tessera/comm/world.h"
#include "tessera/engine/rewind.h"
#include "tessera/engine/run_folder.h"

namespace tessera::rlhf {

/// The alarm that sends a run back, and the checkpoint to which it goes.
struct RollBackTarget {
  std::string alarm;  ///< its name
  std::string what, fix;
  std::int64_t after = 0;   ///< updates of the policy that wrote the last rollout
  std::int64_t newest = 0;  ///< the largest number of updates of the checkpoint to go back to
  std::int64_t times = 0;   ///< how often the run has gone back, including this time
};

/// Thrown by Engine::train_step() on every rank; prepare() is go_back().
class RollBack : public engine::Rewind {
 public:
  explicit RollBack(RollBackTarget target);
  [[nodiscard]] const RollBackTarget& target() const noexcept { return target_; }

 private:
  RollBackTarget target_;
};

/// Prepares the folder to continue from the newest checkpoint of at most target().newest updates,
/// and returns that checkpoint. Later checkpoints and copies of metrics.jsonl and of the ledger are
/// moved aside, the ledger keeps the rollouts before the checkpoint, and a line is appended to
/// roll_backs.jsonl. If the process is killed meanwhile, the run repeats the part behind the
/// checkpoint and goes back again. Throws the error of the alarm if there is no such checkpoint,
/// and Error{Io}. Collective; no engine of the run may exist.
std::filesystem::path go_back(comm::World& world,
                              const engine::RunFolder& folder,
                              const RollBack& alarm);

/// Returns how often a run that continues after `step` updates has gone back: `known` times by its
/// checkpoint, or more if roll_backs.jsonl says that it went back to this step. Throws
/// Error{Format} for an invalid line.
std::int64_t roll_backs_up_to(const std::filesystem::path& run_dir,
                              std::int64_t step,
                              std::int64_t known);
/// Removes the lines of returns to steps after `step`, which an earlier resume point makes void.
/// Call it on one rank.
void forget_roll_backs_after(const std::filesystem::path& run_dir, std::int64_t step);

}  // namespace tessera::rlhf
