// SPDX-License-Identifier: Apache-2.0
// The memory of the gradients of a stage: their sums, and what travels (gradient_reduction.h).
#pragma once

#include <cstdint>

#include "tessera/parallel/planned_buffers.h"

namespace tessera::parallel {

/// Bytes of a rank.
struct GradientBytes {
  std::int64_t sums = 0;       ///< of whole gradients; of those on a disk, the buffers
  std::int64_t rows = 0;       ///< of gradients of tables that are kept as rows
  std::int64_t residuals = 0;  ///< SentResiduals
  std::int64_t in_flight = 0;
  std::int64_t largest_sum = 0;  ///< of `sums`, that of the largest gradient
  /// While a buffer is updated: its sums in fp32, if they are accumulated in fewer bits.
  std::int64_t widened = 0;
  std::int64_t disk = 0;  ///< of sums that rest there, in whole blocks
  int buffers = 0;        ///< the number of these in memory at a time
  /// Bytes of sums that a step reads and writes, without those of optimizers that read gradients
  /// twice, of clipping by value, and of gradients of tables that consist of rows.
  std::int64_t read = 0, written = 0;
  /// True if sums take the memory of activations that backward has freed: no gradient is older
  /// than the activations of its step.
  bool reuse_activations = false;
  [[nodiscard]] std::int64_t total() const { return sums + rows + residuals + in_flight; }
};
/// For a rank of the stage. `tokens`: of a micro-batch. Pure.
GradientBytes gradient_bytes(const PlannedStage& stage, const Layout& layout, std::int64_t tokens);

}  // namespace tessera::parallel
