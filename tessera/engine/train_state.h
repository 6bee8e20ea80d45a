// SPDX-License-Identifier: Apache-2.0
// A model in training on one rank: its weights, gradients, optimizer and executor; one call makes
// one update.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/comm/world.h"
#include "tessera/engine/loss_terms.h"
#include "tessera/nn/block.h"
#include "tessera/nn/step_context.h"
#include "tessera/optim/average.h"
#include "tessera/optim/decay_ramp.h"
#include "tessera/optim/loss_scale.h"
#include "tessera/optim/rule.h"
#include "tessera/optim/schedule.h"
#include "tessera/parallel/executor.h"
#include "tessera/parallel/gather_order.h"
#include "tessera/parallel/gradient_reduction.h"
#include "tessera/parallel/held.h"
#include "tessera/parallel/model_instance.h"
#include "tessera/parallel/pipeline/schedule.h"
#include "tessera/parallel/pipeline/stage_link.h"
#include "tessera/parallel/sharded_optimizer.h"
#include "tessera/parallel/weight_gather.h"

namespace tessera::engine {

using optim::OnNonfinite;

/// How the loss of an fp16 model is scaled.
struct LossScaling {
  optim::Fp16Options options;
  int zero_stage = 1;  ///< DeepSpeed's rule depends on it
};

/// Everything that a TrainState is made from, and nothing about data, files or reports. The state
/// owns it. train_state_options() makes it from a plan.
struct TrainStateOptions {
  nn::Model model;
  std::uint64_t seed = 0;       ///< of dropout and of the first weights
  parallel::FillRange weights;  ///< the first weights; empty: initialized from the seed
  parallel::WeightOptions weight_layout;
  parallel::GatherOptions gather;
  parallel::ReductionOptions reduction;
  parallel::Recompute recompute;
  parallel::KeptTypes kept;
  /// Checkpoints hold what is trained; `weights` gives the rest when one is loaded.
  bool trained_alone = false;
  int zero_stage = 0;
  parallel::StageLayout stages;
  parallel::PipelineSchedule pipeline;  ///< of several stages
  bool scatter_gather = false;          ///< between stages of tensor-parallel ranks
  std::unique_ptr<optim::Rule> rule;
  std::unique_ptr<optim::Schedule> schedule;
  optim::DecayRamp decay_ramp;
  parallel::ParamSettings settings;    ///< rates and decay of single parameters
  std::optional<LossScaling> scaling;  ///< of fp16
  double clip_norm = 0.0;              ///< 0: gradients are not clipped by their norm
  double clip_value = 0.0;             ///< 0: nor element by element
  bool clip_after_warmup = false;      ///< the norm is not clipped during the warm-up
  OnNonfinite on_nonfinite = OnNonfinite::Stop;
};

/// What a caller adds to a step: numbers that travel inside the step's own collectives, and work
/// before the update. Any member may be empty; set the same ones on all ranks.
struct StepExtras {
  /// Called after the micro-batches are loaded; `summed` receives the sums over all ranks.
  std::function<std::vector<double>()> to_sum = {};
  std::function<void(std::span<const double> sums)> summed = {};
  /// Called after the backward pass; StepResult::maxima has the largest value of any rank.
  std::function<std::vector<double>()> to_max = {};
  /// Called before the weights change, unless the update is skipped.
  std::function<void()> before_update = {};
};

/// What one step did. Everything but the times is the same on every rank.
struct StepResult {
  std::int64_t step = 0;  ///< from 1
  double loss = 0.0;      ///< before the update, over the global batch
  Metrics metrics;        ///< the terms of the loss, before the update too
  double lr = 0.0;
  double grad_norm = 0.0;  ///< before clipping
  bool skipped = false;    ///< there was no update: the gradient is not finite
  std::string skip_reason;
  std::optional<double> loss_scale;  ///< by which the loss was multiplied (fp16)
  std::vector<double> maxima;        ///< of StepExtras::to_max
  /// Seconds of this rank. `receive_s` is a part of `forward_s` and `backward_s`.
  double data_s = 0.0, forward_s = 0.0, backward_s = 0.0, reduce_s = 0.0, optimizer_s = 0.0,
         receive_s = 0.0;
};

/// A model that is trained. Several of them can exist in one process and share one World, as long
/// as all ranks call them in the same order; each gives the bits that it gives alone. The World
/// must outlive the state. Threads: the rank's own. All methods but the plain accessors are
/// collective.
class TrainState {
 public:
  TrainState(TrainStateOptions options, comm::World& world);
  ~TrainState();
  TrainState(const TrainState&) = delete;
  TrainState& operator=(const TrainState&) = delete;

  [[nodiscard]] comm::World& world() { return world_; }
  [[nodiscard]] parallel::ModelInstance& model() { return *model_; }
  [[nodiscard]] parallel::Executor& executor() { return *executor_; }
  [[nodiscard]] std::int64_t steps() const { return step_; }  ///< made so far
  [[nodiscard]] std::int64_t skipped() const { return skipped_; }

  /// First weights: TrainStateOptions::weights, or values that follow from seed and names.
  void initialize_weights();

  using LoadMicro = std::function<nn::Batch(int micro)>;
  /// One update on one global batch. `load(m)` gives this rank's micro-batch m of `num_micros`, the
  /// number of which is round_micros() of itself and the same on all ranks; in global order the
  /// micro-batch of data-parallel rank r is number m * n + r. Batches have whole sequences, also
  /// where ranks share the tokens; one without samples has tensors of size 0. Error{Numeric} names
  /// step, rank, block and tensor of what is not finite, before any update. fp16 gradients that
  /// overflow are no error but a skipped step, until no smaller loss scale is left.
  StepResult step(int num_micros, const LoadMicro& load, const StepExtras& extras = {});
  /// The same for micro-batches that exist already, at least one, and the same number on all ranks.
  StepResult step(const std::vector<nn::Batch>& micro_batches, const StepExtras& extras = {});
  /// The number of micro-batches that a step of at least `num_micros` consists of: some pipeline
  /// schedules need whole rounds. What is added has no samples.
  [[nodiscard]] int round_micros(int num_micros) const;

  /// Runs the blocks without gradients. The outcome has the objective's terms and outputs, on the
  /// stage that holds the objective. All ranks of a model replica give the same batch, with whole
  /// sequences. `context` chooses Eval, Prefill or Decode.
  nn::Outcome infer(const nn::Batch& batch, nn::StepContext& context);

  /// This rank's part of a checkpoint of the state, which stays readable until release_pieces() or
  /// the next update.
  std::vector<checkpoint::PieceBytes> pieces();
  void release_pieces() { optimizer_->release_pieces(); }
  /// Writes the counters and the loss scaler's state into `meta`.
  void describe(checkpoint::Meta& meta) const;
  /// Weights, optimizer state, counters and loss scale of a checkpoint, whatever layout wrote it.
  void load(const checkpoint::Checkpoint& checkpoint);
  /// Exchanges the weights with their moving average, which the rule keeps (optim/average.h), until
  /// it is called again.
  void exchange_average() { optimizer_->exchange_weights(optim::kAverageState); }
  /// Waits until this rank's working weights are complete and no transfer is under way.
  void wait() { optimizer_->wait_weights(); }

 private:
  const std::vector<parallel::Action>& actions(int num_micros);
  std::size_t num_denominators(std::size_t mine);
  std::vector<double> sum_denominators(const std::vector<std::vector<double>>& mine,
                                       const StepExtras& extras);
  parallel::StepInput step_input(int num_micros, const LoadMicro& load, const StepExtras& extras);
  std::vector<double> finish_gradients(double scale);
  void reduce_losses(parallel::StepOutput out,
                     int num_micros,
                     const StepExtras& extras,
                     StepResult& result);
  void follow_scale(StepResult& result);
  [[nodiscard]] double clip(double norm) const;
  [[nodiscard]] std::string first_nonfinite(const std::vector<double>& sums) const;
  std::optional<parallel::GradientReduction::Culprit> find_culprit(
      const parallel::StepInput& input);
  [[noreturn]] void refuse_nonfinite(const StepResult& result, const parallel::StepInput& input);
  [[noreturn]] void refuse_overflow(const StepResult& result, const std::string& why);

  TrainStateOptions options_;
  comm::World& world_;
  std::optional<optim::LossScaler> scaler_;  ///< of fp16
  std::unique_ptr<parallel::ModelInstance> model_;
  std::unique_ptr<parallel::StageLink> link_;  ///< of a pipeline
  std::unique_ptr<parallel::WeightGather> weights_;
  std::unique_ptr<parallel::GradientReduction> gradients_;
  std::unique_ptr<parallel::ShardedOptimizer> optimizer_;
  std::unique_ptr<parallel::Executor> executor_;
  std::unique_ptr<TermReduction> terms_;
  std::map<int, std::vector<parallel::Action>> actions_;  ///< by the number of micro-batches
  std::int64_t step_ = 0, skipped_ = 0;
  /// Losses of the last step's micro-batches on all ranks, in the order of their summation; where
  /// ranks share the tokens of a micro-batch, one value for each of them.
  std::vector<double> micro_losses_;
  /// The first gradient of the last step that is not finite, if gradients are watched.
  std::optional<parallel::GradientReduction::Culprit> culprit_;
  std::optional<std::size_t> num_denominators_;  ///< of a pipeline's loss, from the first step on
  int hopeless_ = 0;  ///< consecutive overflows at a loss scale that cannot shrink further
};

}  // namespace tessera::engine
