// SPDX-License-Identifier: Apache-2.0
// Training data that no dataset contains: the model itself generates it, step by step. A floor
// above registers how, under the name that Task::experience() returns.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tessera/base/registry.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/comm/world.h"
#include "tessera/data/dataset.h"
#include "tessera/data/sample_order.h"
#include "tessera/engine/evaluate.h"
#include "tessera/engine/loss_terms.h"
#include "tessera/engine/train_state.h"
#include "tessera/nn/block.h"
#include "tessera/tasks/task.h"

namespace tessera::planner {
class Plan;
class PlanWithData;
}  // namespace tessera::planner

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

/// The ranks of a job that do not train (tasks::Task::extra_ranks()), as those that train see them.
/// Used only on the rank's own thread.
class ExtraRanks {
 public:
  virtual ~ExtraRanks() = default;
  /// Drops what is under way, because the training goes back to an earlier checkpoint. Collective
  /// over the ranks that train.
  virtual void start_over() = 0;
};

/// The interface of a kind of experience for the engine and a run. Const methods can be called from
/// any thread.
class ExperienceKind {
 public:
  virtual ~ExperienceKind() = default;
  /// Returns the experience of a plan whose task names this kind. The arguments must outlive it;
  /// `train` is the training data, which the task has opened; `extra_ranks`: nullptr if the job has
  /// none. Throws Error{Config} for data of another kind. Collective.
  [[nodiscard]] virtual std::unique_ptr<Experience> make(const planner::PlanWithData& plan,
                                                         comm::World& world,
                                                         TrainState& policy,
                                                         const data::Dataset& train,
                                                         ExtraRanks* extra_ranks) const = 0;
  /// Returns what of `available` bytes of a host `count` of the extra ranks leave for the others.
  /// Throws Error{Memory} if they do not fit.
  [[nodiscard]] virtual std::uint64_t memory_beside(const planner::Plan& plan,
                                                    std::uint64_t available,
                                                    int count) const;
  using Train = std::function<int(comm::World& learners, ExtraRanks& extra_ranks)>;
  /// Runs one rank of a job with extra ranks: `train` on those that train, other work on the extra
  /// ranks. Returns, on every rank, what `train` returns. Collective over `job`.
  virtual int run_divided(const planner::PlanWithData& plan,
                          comm::World& job,
                          const data::Dataset& train_data,
                          const Train& train) const;
  /// Returns lines of plain text that define the symbols which the experience adds to the loss.
  [[nodiscard]] virtual std::vector<std::string> formula(const tasks::Task& /*task*/) const {
    return {};
  }
};

/// By the names that Task::experience() returns.
Registry<const ExperienceKind*>& experiences();
/// Registers an object of the class `Kind`.
#define TESSERA_EXPERIENCE(name, Kind)              \
  static const Kind tessera_experience_of_##Kind{}; \
  static const bool tessera_experience_##Kind =     \
      ::tessera::engine::experiences().add(name, &tessera_experience_of_##Kind)

/// Returns the kind of the task's experience; nullptr for a task that learns from its dataset, and
/// for no task. Throws Error{Config} if the program does not contain it.
const ExperienceKind* experience_of(const tasks::Task* task);

}  // namespace tessera::engine
