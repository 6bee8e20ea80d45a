// SPDX-License-Identifier: Apache-2.0
// Training data that no dataset contains: the model itself generates it, step by step.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/data/dataset.h"
#include "tessera/data/sample_order.h"
#include "tessera/engine/evaluate.h"
#include "tessera/engine/loss_terms.h"
#include "tessera/nn/block.h"

namespace tessera::engine {

/// Says whether generated data is kept for a resumed run, or the data that a run has kept is
/// learned again.
enum class Keeping : std::uint8_t { Append, Replay };

/// Tokens of a step, without padding.
struct StepTokens {
  std::int64_t learned = 0;    ///< of all samples that the update learns
  std::int64_t generated = 0;  ///< tokens that make() generated for the step
  double generate_s = 0.0;     ///< the time that this took on this rank
};

/// Provides the data between an Engine and its dataset, which defines the samples. All methods
/// except samples(), further(), tokens() and describe() are collective. Used only on the rank's own
/// thread.
class Experience {
 public:
  virtual ~Experience() = default;
  /// Called when the weights are set, initially or from a checkpoint after `step` updates.
  /// `run_dir`: where generated data is kept; empty: nowhere.
  virtual void begin(std::int64_t step, const std::filesystem::path& run_dir, Keeping keeping) = 0;
  /// Generates the data for the step on `batch`, with the current weights.
  virtual void make(const data::GlobalBatch& batch) = 0;
  /// Returns samples [first, end) of that batch, for this rank; the range may be empty.
  [[nodiscard]] virtual nn::Batch samples(std::int64_t first, std::int64_t end) const = 0;
  /// Returns the number of samples that every step learns in addition to those of its batch, in
  /// micro-batches of their own.
  [[nodiscard]] virtual std::int64_t num_further() const { return 0; }
  /// Returns samples [first, end) of these, for this rank; the range may be empty.
  [[nodiscard]] virtual nn::Batch further(std::int64_t first, std::int64_t end) const {
    return samples(first, end);
  }
  /// Returns the tokens of the step whose data make() provided last; their numbers are the same on
  /// every rank.
  [[nodiscard]] virtual StepTokens tokens() const = 0;
  /// Called after the update: updates other models, and adds metrics to report.
  virtual void learn(Metrics& metrics) = 0;
  /// Evaluates the current weights on at most `samples` samples of other data of the task.
  virtual EvalReport evaluate(const data::Dataset& held_out, std::int64_t samples) = 0;
  /// Adds the state that consists of a few numbers to a checkpoint's metadata. Not collective.
  virtual void describe(checkpoint::Meta& meta) const = 0;
  /// Returns the state that a checkpoint contains besides the model, readable until
  /// release_pieces(). load() reads it from a checkpoint, before begin().
  [[nodiscard]] virtual std::vector<checkpoint::PieceBytes> pieces() = 0;
  virtual void release_pieces() = 0;
  virtual void load(const checkpoint::Checkpoint& checkpoint) = 0;
};

}  // namespace tessera::engine
