// SPDX-License-Identifier: Apache-2.0
// Computes a plan's memory before anything is started.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/planner/plan.h"

namespace tessera::planner {

/// Values that rest on a disk.
struct DiskNeed {
  std::string key, what;   ///< the key of the folder, and what is there, in the plural
  std::string folder;      ///< absolute
  std::int64_t bytes = 0;  ///< of a rank
  bool saved = true;       ///< checkpoints contain them
  int ranks = 0;           ///< number of ranks that have them; 0: all
};
/// The memory that a rank needs besides its plan's model.
struct Needs {
  std::int64_t beside = 0;     ///< bytes for other models and caches
  std::int64_t traveling = 0;  ///< bytes of buffers between hosts (travel_bytes())
  std::vector<DiskNeed> disk;  ///< of other models
};

/// Share of the free memory that a plan may use; the rest is a reserve for fluctuations.
inline constexpr double kUsableMemory = 0.95;

/// Base memory of a process: libraries' own data, file buffers, stacks.
inline constexpr std::int64_t kProcessBytes = std::int64_t{48} << 20;

/// Bytes of one rank, on the stage that needs most. Parameters, gradients and optimizer are what
/// the parts of parallel/ answer for the flat buffers of a run (weight_bytes.h, gradient_bytes.h,
/// state_bytes.h); activations are measured by running the model's blocks on meta tensors, plus a
/// few percent; messages is what the ranks of a host exchange them with; other is the base memory
/// of a process, a teacher and Needs. Copies are in a process of their own on the host of the rank.
struct MemoryEstimate {
  std::int64_t parameters = 0, gradients = 0, optimizer = 0, activations = 0, other = 0;
  std::int64_t messages = 0;  ///< parallel::message_bytes()
  std::int64_t copies = 0;    ///< copy_bytes()
  std::int64_t disk = 0;      ///< offload_bytes() of the stage, which take no memory
  std::int64_t on_host = 0;   ///< host_bytes() of the stage, in the host's memory
  /// Bytes shared by gradients and activations: with one micro-batch per step, gradient sums reuse
  /// the memory of activations that the backward pass has freed.
  std::int64_t shared = 0;
  /// The reason why activations are not predicted and count as 0, as a sentence; empty: they are
  /// predicted.
  std::string unknown;
  [[nodiscard]] std::int64_t total() const {
    return parameters + gradients + optimizer + activations + messages + other + copies - shared;
  }
  /// "parameters 3.2 MiB, gradients ...".
  [[nodiscard]] std::string text() const;
};
MemoryEstimate estimate_memory(const Plan& plan);
/// True if `ranks` ranks with this estimate need at most kUsableMemory of `available` bytes;
/// activations that are not predicted count as 0.
bool fits(const MemoryEstimate& need, int ranks, std::uint64_t available);

/// Bytes of a rank that rest on a disk, on the stage that needs most: masters and states, sums of
/// gradients, working weights, and activations.
struct OffloadBytes {
  std::int64_t states = 0, gradients = 0, weights = 0, activations = 0;
  int gradient_buffers = 0;            ///< sums of gradients in memory at a time
  std::int64_t read = 0, written = 0;  ///< in a step
  /// Empty: they do not rest on a disk.
  std::string states_folder, weights_folder, activations_folder;
  [[nodiscard]] std::int64_t total() const { return states + gradients + weights + activations; }
};
OffloadBytes offload_bytes(const Plan& plan);
/// Bytes of a rank on a device in the memory of its host, on the stage that needs most: masters and
/// states, which the host updates; working weights; inputs of recomputed blocks. With the pinned
/// memory, and the buffers of a disk, through which they travel. 0 on the CPU.
struct HostBytes {
  std::int64_t states = 0, weights = 0, activations = 0;
};
HostBytes host_bytes(const Plan& plan);
/// What of the plan's own model rests on a disk; the kinds that are configured, also without bytes.
std::vector<DiskNeed> disk_needs(const Plan& plan);
/// Notes what stays in memory although its kind rests on a disk.
void note_what_stays(const Plan& plan, std::vector<std::string>& notes);

/// Bytes that the transport of a rank allocates for gradients and weights if there are `host_ranks`
/// ranks on each host, on the stage that needs most.
std::int64_t travel_bytes(const Plan& plan, int host_ranks);

/// Bytes of one checkpoint: fp32 master weights and optimizer state.
std::int64_t checkpoint_bytes(const Plan& plan);

/// Bytes, for each rank, of the copies that its host keeps in memory (checkpoint.peer_copies): its
/// own state and that of a rank of the host before, and both again while the next ones are written.
std::int64_t copy_bytes(const Plan& plan);

/// Bytes of one rank's copy of the data it saves, while a checkpoint is written in the background;
/// 0 if none is.
std::int64_t saving_bytes(const Plan& plan);
/// True if training goes on while values of an earlier step are written.
bool copies_while_training(const Plan& plan);
/// How a plan writes its checkpoints.
struct Saving {
  bool in_background = true;
  std::string note;  ///< for the user, if training waits although the plan says otherwise
};
/// Lets training wait for its checkpoints if the copies would exceed 95 % of `available` bytes
/// together with `need`, the estimate of the plan, or if activations are not predicted.
Saving saving_as_memory_allows(const Plan& plan,
                               const MemoryEstimate& need,
                               std::uint64_t available);

/// Returns the estimate. Throws the error of a block that refuses the plan's batches
/// (check_blocks()), and Error{Memory} if the plan needs more than 95 % of `available` bytes
/// on its local ranks; the message has both numbers and the smallest changes that fit.
MemoryEstimate check_memory(const Plan& plan, std::uint64_t available);

/// The blocks to recompute so that the plan fits: the smallest number of them, from the first layer
/// on; all of them if even that is not enough. Adds a note if activations are not predicted.
std::vector<bool> blocks_to_recompute(const Plan& plan,
                                      std::uint64_t available,
                                      std::vector<std::string>& notes);

/// The highest ZeRO stage that the plan's optimizer allows.
int highest_stage(const Plan& plan);

/// The smallest changes that fit, at most three: "train_micro_batch_size_per_gpu 4", "model.preset
/// nano", ...
std::vector<std::string> changes_that_fit(const Plan& plan, std::uint64_t available);

}  // namespace tessera::planner
