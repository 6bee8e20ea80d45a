// SPDX-License-Identifier: Apache-2.0
// The memory of the gradients of a stage: their sums, and what travels (gradient_reduction.h).
#pragma once

#include <cstdint>
#include <vector>

#include "tessera/parallel/planned_buffers.h"

namespace tessera::parallel {

/// Bytes of a rank.
struct GradientBytes {
  std::int64_t sums = 0;       ///< of whole gradients; of those on a disk, the buffers
  std::int64_t rows = 0;       ///< of gradients of tables that are kept as rows
  std::int64_t residuals = 0;  ///< SentResiduals
  std::int64_t in_flight = 0;
  /// While a buffer is updated: its sums in fp32, if they are accumulated in fewer bits.
  std::int64_t widened = 0;
  std::int64_t disk = 0;  ///< of sums that rest there, in whole blocks
  int buffers = 0;        ///< the number of these in memory at a time
  /// Bytes of sums that a step reads and writes, without those of optimizers that read gradients
  /// twice, of clipping by value, and of gradients of tables that consist of rows.
  std::int64_t read = 0, written = 0;
  /// Those of `sums` that a step allocates when a block begins its first backward, by the block of
  /// the stage: they may take the memory of activations that backward has freed.
  std::vector<std::int64_t> sums_of_blocks;
  [[nodiscard]] std::int64_t total() const { return sums + rows + residuals + in_flight; }
};
/// For a rank of the stage. `tokens`: of a micro-batch. `ids`: the number of different tokens that
/// the data may have. Pure.
GradientBytes gradient_bytes(const PlannedStage& stage,
                             const Layout& layout,
                             std::int64_t tokens,
                             std::int64_t ids);

}  // namespace tessera::parallel
