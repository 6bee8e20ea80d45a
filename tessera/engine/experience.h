// SPDX-License-Identifier: Apache-2.0
// What a training learns from where no dataset has it: the model itself makes it, step by step.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/data/sample_order.h"
#include "tessera/engine/loss_terms.h"
#include "tessera/nn/block.h"

namespace tessera::engine {

/// Whether what is made is kept for a run that goes on, or what a run has kept is learned again.
enum class Keeping : std::uint8_t { Append, Replay };

/// Stands between an Engine and its dataset, which says what samples stand for. All methods but
/// samples() are collective. Threads: the rank's own.
class Experience {
 public:
  virtual ~Experience() = default;
  /// Called once the weights are there, new or of a checkpoint after `step` updates. `run_dir`:
  /// where to keep what is made; empty: nowhere.
  virtual void begin(std::int64_t step, const std::filesystem::path& run_dir, Keeping keeping) = 0;
  /// Makes what the step on `batch` learns from, by the weights of now.
  virtual void make(const data::GlobalBatch& batch) = 0;
  /// Samples [first, end) of that batch, this rank's. Perhaps none.
  [[nodiscard]] virtual nn::Batch samples(std::int64_t first, std::int64_t end) const = 0;
  /// Called after the update: whatever else learns does, and what is to be reported is added.
  virtual void learn(Metrics& metrics) = 0;
  /// What belongs to a checkpoint beside the model, readable until release_pieces(); and the
  /// reverse, before begin().
  [[nodiscard]] virtual std::vector<checkpoint::PieceBytes> pieces() = 0;
  virtual void release_pieces() = 0;
  virtual void load(const checkpoint::Checkpoint& checkpoint) = 0;
};

}  // namespace tessera::engine
