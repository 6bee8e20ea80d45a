// SPDX-License-Identifier: Apache-2.0
// A model in training on one rank: its weights, gradients, optimizer and executor. One call makes
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
#include "tessera/memory/tiers/tier.h"
#include "tessera/nn/block.h"
#include "tessera/nn/step_context.h"
#include "tessera/optim/average.h"
#include "tessera/optim/decay_ramp.h"
#include "tessera/optim/loss_scale.h"
#include "tessera/optim/rule.h"
#include "tessera/optim/schedule.h"
#include "tessera/parallel/activation_store.h"
#include "tessera/parallel/executor.h"
#include "tessera/parallel/gather_order.h"
#include "tessera/parallel/gradient_reduction.h"
#include "tessera/parallel/held.h"
#include "tessera/parallel/model_instance.h"
#include "tessera/parallel/pipeline/schedule.h"
#include "tessera/parallel/pipeline/stage_link.h"
#include "tessera/parallel/sharded_optimizer.h"
#include "tessera/parallel/weight_gather.h"
#include "tessera/report/expert_loads.h"

namespace tessera::engine {

using optim::OnNonfinite;

/// The loss scaling of an fp16 model.
struct LossScaling {
  optim::Fp16Options options;
  int zero_stage = 1;  ///< DeepSpeed's rule depends on it
};

/// The inputs from which a TrainState is built; they contain nothing about data, files or reports.
/// The state owns them. train_state_options() derives them from a plan.
struct TrainStateOptions {
  nn::Model model;
  std::uint64_t seed = 0;       ///< for dropout and the initial weights
  parallel::FillRange weights;  ///< the initial weights; empty: initialized from the seed
  parallel::WeightOptions weight_layout;
  /// If weight_layout.apart is set: the sets that are frozen at first, see freeze_sets().
  std::vector<bool> frozen_sets;
  parallel::GatherOptions gather;
  parallel::ReductionOptions reduction;
  parallel::Recompute recompute;
  parallel::KeptTypes kept;
  std::optional<parallel::StateOffload> offload;  ///< not for compressed rules
  bool states_on_host = false;    ///< StatePlace::on_host; also of rules that need it
  bool early_updates = false;     ///< StatePlace::early_updates
  bool streamed_updates = false;  ///< StatePlace::streamed
  std::optional<parallel::WeightOffload> weight_offload;          ///< as in weight_layout
  std::optional<parallel::ActivationOffload> activation_offload;  ///< of recomputed blocks
  std::optional<int> host_activations;                            ///< as in parallel::Layout
  bool partition_activations = false;  ///< tensor-parallel ranks divide what they have alike
  memory::TierOptions disk;            ///< of all that rests on a disk, without the folder
  /// Checkpoints contain only trained parameters; when one is loaded, `weights` supplies the
  /// others.
  bool trained_alone = false;
  int zero_stage = 0;
  parallel::StageLayout stages;
  parallel::PipelineSchedule pipeline;  ///< if there are several stages
  bool scatter_gather = false;          ///< between stages of tensor-parallel ranks
  std::unique_ptr<optim::Rule> rule;
  std::unique_ptr<optim::Schedule> schedule;
  optim::DecayRamp decay_ramp;
  parallel::ParamSettings settings;    ///< learning rates and weight decay of single parameters
  std::optional<LossScaling> scaling;  ///< only for fp16
  double clip_norm = 0.0;              ///< 0: the norm of the gradients is not clipped
  double clip_value = 0.0;             ///< 0: gradient elements are not clipped
  bool clip_after_warmup = false;      ///< the norm is not clipped during the warm-up
  OnNonfinite on_nonfinite = OnNonfinite::Stop;
};

/// A caller's additions to a step: numbers that are sent within the step's own collectives, and
/// work before the update. Any member may be empty; set the same ones on all ranks.
struct StepExtras {
  /// Called after the micro-batches are loaded; `summed` receives the sums over all ranks.
  std::function<std::vector<double>()> to_sum = {};
  std::function<void(std::span<const double> sums)> summed = {};
  /// Called after the backward pass; StepResult::maxima has the largest value of any rank.
  std::function<std::vector<double>()> to_max = {};
  /// Called before weights or states change; not in a step without an update.
  std::function<void()> before_change = {};
  /// Called after the backward pass, and before anything changes, unless the update is skipped.
  /// With it, no update begins during the backward pass.
  std::function<void()> before_update = {};
};

/// The result of one step. All fields but the times are the same on every rank.
struct StepResult {
  std::int64_t step = 0;                         ///< counted from 1
  double loss = 0.0;                             ///< over the global batch, before the update
  Metrics metrics;                               ///< the loss terms, also before the update
  std::vector<report::LayerLoads> expert_loads;  ///< of each sparse layer, over the global batch
  double lr = 0.0;
  double grad_norm = 0.0;  ///< before clipping
  bool skipped = false;    ///< there was no update: the gradient is not finite
  std::string skip_reason;
  std::optional<double> loss_scale;  ///< factor of the loss (fp16)
  std::vector<double> maxima;        ///< maxima of StepExtras::to_max
  /// Seconds on this rank. `receive_s` is a part of `forward_s` and `backward_s`.
  double data_s = 0.0, forward_s = 0.0, backward_s = 0.0, reduce_s = 0.0, optimizer_s = 0.0,
         receive_s = 0.0;
  memory::TierUse disk;         ///< of this rank, since the last step: what rests on a disk
  parallel::EarlyCounts early;  ///< of this rank: updates that began during the backward pass
};

class ExpertBalance;

/// A model in training. Several of them can exist in one process and share one World, if all ranks
/// call them in the same order; each gives the same bits as alone. The World must outlive the
/// state. Used only on the rank's own thread. All methods except the plain accessors are
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
  [[nodiscard]] std::int64_t steps() const { return step_; }  ///< number of updates so far
  [[nodiscard]] std::int64_t skipped() const { return skipped_; }
  /// Factor of the loss in the step that runs, or in the next one.
  [[nodiscard]] double loss_scale() const { return scaler_ ? scaler_->scale() : 1.0; }

  /// Initializes the weights from TrainStateOptions::weights, or with values that depend on seed
  /// and names. `nudge`: then moves each weight by this fraction of itself, up or down by its
  /// place.
  void initialize_weights(double nudge = 0.0);

  using LoadMicro = std::function<nn::Batch(int micro)>;
  /// Makes one update on one global batch. `load(m)` returns this rank's micro-batch m of
  /// `num_micros`, a number that round_micros() must not change and that is the same on all ranks;
  /// micro-batch m of data-parallel rank r is number m * n + r in the global order. Batches contain
  /// whole sequences, also if ranks share the tokens; a batch without samples has tensors of size
  /// 0. Throws Error{Numeric} before any update if a value is not finite, and names step, rank,
  /// block and tensor. An fp16 gradient that overflows is not an error but skips the step, until
  /// the loss scale cannot become smaller.
  StepResult step(int num_micros, const LoadMicro& load, const StepExtras& extras = {});
  /// The same for micro-batches that exist already, at least one, and the same number on all ranks.
  StepResult step(const std::vector<nn::Batch>& micro_batches, const StepExtras& extras = {});
  /// The number of micro-batches of a step with at least `num_micros`, because some pipeline
  /// schedules need as many as there are stages. The additional micro-batches have no samples.
  [[nodiscard]] int round_micros(int num_micros) const;

  /// Computes the gradient of micro-batches as step() does, without clipping and without an update.
  /// `denominators`: what the sums of the loss terms are divided by; empty: the counts of these
  /// micro-batches. Returns what they were divided by. `visit` receives the gradient as
  /// visit_trained() says. Gradients of parts of a batch that are divided by the denominators of
  /// the whole batch add up to the gradient of the whole batch, if its loss terms are sums over
  /// samples.
  std::vector<double> gradient(int num_micros,
                               const LoadMicro& load,
                               const std::vector<double>& denominators,
                               const parallel::TrainedVisitor& visit);

  /// Runs the blocks without gradients. The outcome has the objective's terms and outputs, on the
  /// stage that holds the objective. All ranks of a model replica pass the same batch, with whole
  /// sequences. `context` selects Eval, Prefill or Decode.
  nn::Outcome infer(const nn::Batch& batch, nn::StepContext& context);

  /// Calls `visit` for ranges of all trained parameters, each element of the job on exactly one
  /// rank: weights before the update, and the sum of the step's gradients times the loss scale.
  /// Call it in StepExtras::before_update, on all ranks. Gradients that a compressed optimizer
  /// leaves on their ranks are undefined.
  void visit_trained(const parallel::TrainedVisitor& visit);

  /// This rank's part of a checkpoint of the state; readable until release_pieces() or the next
  /// update.
  std::vector<checkpoint::PieceBytes> pieces();
  void release_pieces();
  /// Writes the counters and the loss scaler's state into `meta`.
  void describe(checkpoint::Meta& meta) const;
  /// Loads weights, optimizer state, counters and loss scale from a checkpoint of any layout.
  void load(const checkpoint::Checkpoint& checkpoint);
  /// Swaps the weights with their moving average, which the rule keeps (optim/average.h); a second
  /// call swaps them back.
  void exchange_average() { optimizer_->exchange_weights(optim::kAverageState); }
  /// Freezes and thaws the sets of parameters that WeightOptions::apart numbers, from the next step
  /// on. State of the optimizer exists only for what is trained: it begins when a set thaws, as in
  /// a first step, and is dropped when it is frozen. Call it between steps, and before load() with
  /// what the checkpoint's next step trains.
  void freeze_sets(const std::vector<bool>& frozen);
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
  [[nodiscard]] memory::TierUse disk_use() const;
  [[nodiscard]] double clip(double norm) const;
  [[nodiscard]] std::string first_nonfinite(const std::vector<double>& sums) const;
  std::optional<parallel::GradientReduction::Culprit> find_culprit(
      const parallel::StepInput& input);
  [[noreturn]] void refuse_nonfinite(const StepResult& result, const parallel::StepInput& input);
  [[noreturn]] void refuse_overflow(const StepResult& result, const std::string& why);

  TrainStateOptions options_;
  comm::World& world_;
  std::optional<optim::LossScaler> scaler_;    ///< only for fp16
  memory::TierUse disk_before_;                ///< at the end of the last step
  std::unique_ptr<memory::Tier> weight_tier_;  ///< of working weights that rest on a disk
  std::unique_ptr<parallel::ModelInstance> model_;
  std::unique_ptr<parallel::StageLink> link_;  ///< only for a pipeline
  std::unique_ptr<parallel::WeightGather> weights_;
  std::unique_ptr<memory::Tier> tier_;  ///< of masters, states and gradients that rest on a disk
  std::unique_ptr<parallel::GradientReduction> gradients_;
  std::unique_ptr<parallel::ShardedOptimizer> optimizer_;
  std::unique_ptr<memory::Tier> activation_tier_;
  std::unique_ptr<parallel::ActivationStore> activations_;  ///< nullptr: they stay in memory
  std::unique_ptr<parallel::Executor> executor_;
  std::unique_ptr<TermReduction> terms_;
  std::unique_ptr<ExpertBalance> experts_;                ///< nullptr: the model has no experts
  std::map<int, std::vector<parallel::Action>> actions_;  ///< by the number of micro-batches
  std::int64_t step_ = 0, skipped_ = 0;
  /// Losses of the last step's micro-batches on all ranks, in the order of summation; if ranks
  /// share the tokens of a micro-batch, one value per rank.
  std::vector<double> micro_losses_;
  /// The first non-finite gradient of the last step, if gradients are watched.
  std::optional<parallel::GradientReduction::Culprit> culprit_;
  /// Number of denominators of a pipeline's loss; known from the first step on.
  std::optional<std::size_t> num_denominators_;
  int hopeless_ = 0;  ///< consecutive overflows at the smallest loss scale
};

}  // namespace tessera::engine
