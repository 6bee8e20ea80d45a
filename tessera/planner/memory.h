// SPDX-License-Identifier: Apache-2.0
// How much memory a plan needs, before anything is started.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/planner/train_config.h"

namespace tessera::planner {

/// Bytes of one rank, of the stage that needs most. Parameters, gradients and optimizer are those
/// of the flat buffers that a run makes; activations are what the model's blocks ask for on meta
/// tensors and a few percent more; other is what a process has anyhow, and Plan::beside.
struct MemoryEstimate {
  std::int64_t parameters = 0, gradients = 0, optimizer = 0, activations = 0, other = 0;
  /// Of gradients and activations: with one micro-batch a step, sums of gradients take the room of
  /// activations that the backward pass is done with.
  std::int64_t shared = 0;
  /// Why activations are not predicted and count as 0, as a sentence; empty: they are.
  std::string unknown;
  [[nodiscard]] std::int64_t total() const {
    return parameters + gradients + optimizer + activations + other - shared;
  }
  /// "parameters 3.2 MiB, gradients ...".
  [[nodiscard]] std::string text() const;
};
MemoryEstimate estimate_memory(const Plan& plan);

/// Bytes of one checkpoint: fp32 master weights and the optimizer's state.
std::int64_t checkpoint_bytes(const Plan& plan);

/// Bytes of one rank's copy of what it saves, while a checkpoint is written beside the training; 0
/// where none is.
std::int64_t saving_bytes(const Plan& plan);
/// Lets training wait for its checkpoints, with a note, where the copies do not fit into 95 % of
/// `available` bytes beside the plan, and where activations are not predicted.
void save_as_memory_allows(Plan& plan, std::uint64_t available);

/// Refuses a plan that needs more than 95 % of `available` bytes on its local ranks: Error{Memory}
/// with both numbers and the smallest changes that fit.
void check_memory(const Plan& plan, std::uint64_t available);

/// Marks blocks, from the first layer on, to be run twice until the plan fits: as few as are
/// enough, all of them where even that is not.
void recompute_what_memory_needs(Plan& plan, std::uint64_t available);

/// Those changes, at most three: "train_micro_batch_size_per_gpu 4", "model.preset nano", ...
std::vector<std::string> changes_that_fit(const Plan& plan, std::uint64_t available);

}  // namespace tessera::planner
