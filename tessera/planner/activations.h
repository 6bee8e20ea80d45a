// SPDX-License-Identifier: Apache-2.0
// Predicts the memory of a pass: what forward keeps for backward, and what both need temporarily.
// The model's blocks run on meta tensors for it.
#pragma once

#include <cstdint>
#include <exception>
#include <span>
#include <string>
#include <vector>

#include "tessera/parallel/activation_probe.h"

namespace tessera::planner {

class Plan;

/// Bytes of one rank; training includes the buffers of what rests on a disk. Predictions of a whole
/// step are a few percent above the actual need.
struct Activations {
  std::int64_t training = 0;    ///< the peak of a step, on the stage that needs most
  std::int64_t with_sums = 0;   ///< the peak of a step together with the `sums` of gradients
  std::int64_t flow = 0;        ///< the largest flow between two blocks
  std::int64_t evaluation = 0;  ///< the peak of an evaluation; 0 if there is none
  std::int64_t disk = 0;        ///< of the inputs of blocks that rest on a disk
  std::int64_t moved = 0;       ///< bytes of them in a step, each written and read once
  /// Bytes in the memory of the host for those of ranks on a device.
  std::int64_t on_host = 0;
  /// The reason why there is no prediction, as a sentence; empty: there is one.
  std::string unknown;
  /// The error with which a block refuses the batches of the plan, as it would in the first step or
  /// evaluation; null: none does.
  std::exception_ptr refused;
};
/// Predicts for a stage of the plan. `unknown` says why a model cannot be predicted: a block's
/// operations have no meta kernel or read values, or the tensors of a sample are not known yet.
/// Starts no thread. Cost: a few milliseconds the first time, then arithmetic on results that the
/// plan keeps.
/// `sums`: parallel::GradientBytes::sums_of_blocks; empty: with_sums is the same as training.
Activations predict_activations(const Plan& plan,
                                int stage,
                                std::span<const std::int64_t> sums = {});
/// The work of every block in one micro-batch of a training, on rank 0 of its stage. Needs the
/// tensors of a sample. Throws the error of a block that does not run on meta tensors.
std::vector<parallel::BlockWork> predict_work(const Plan& plan);
/// The names of the terms that an evaluation of the plan computes. Needs the tensors of a sample;
/// empty if the model cannot run on meta tensors.
std::vector<std::string> evaluated_terms(const Plan& plan);
/// Throws Activations::refused, so that a training that would end in its first step or evaluation
/// does not begin. Needs the tensors of a sample; without them it does nothing.
void check_blocks(const Plan& plan);

}  // namespace tessera::planner
