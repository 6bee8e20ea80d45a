// SPDX-License-Identifier: Apache-2.0
// The inner part of the training loop on one rank: feeds a TrainState with batches of a plan's
// data, resumes and reports. Its parts save, evaluate and generate.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/comm/world.h"
#include "tessera/data/dataset.h"
#include "tessera/data/sample_order.h"
#include "tessera/engine/contributions.h"
#include "tessera/engine/eval_model.h"
#include "tessera/engine/evaluate.h"
#include "tessera/engine/evaluator.h"
#include "tessera/engine/experience.h"
#include "tessera/engine/loss_terms.h"
#include "tessera/engine/sampler.h"
#include "tessera/engine/saver.h"
#include "tessera/engine/train_state.h"
#include "tessera/memory/ledger.h"
#include "tessera/planner/plan.h"
#include "tessera/report/expert_loads.h"
#include "tessera/report/monitors/histogram.h"

namespace tessera::engine {

/// The result of one step. All fields but the times are the same on every rank.
struct StepReport {
  std::int64_t step = 0;                         ///< counted from 1
  double epoch = 0.0;                            ///< passes over the training data so far
  double loss = 0.0;                             ///< before the update, over the global batch
  Metrics metrics;                               ///< the terms of the loss, also before the update
  std::vector<report::LayerLoads> expert_loads;  ///< of each sparse layer, over the global batch
  double lr = 0.0;
  double grad_norm = 0.0;       ///< before clipping
  parallel::EarlyCounts early;  ///< of this rank
  std::int64_t tokens = 0;      ///< number of tokens so far
  std::int64_t samples = 0;     ///< number of samples so far
  /// Tokens of this step without padding: those of the sequences of a dataset, or what
  /// Experience::tokens() counts.
  std::int64_t batch_tokens = 0;
  std::int64_t padding_tokens = 0;  ///< positions of this step that are padding
  /// The share of this machine's rate of products that this step's products reached, over all
  /// ranks; 0: not measured.
  double matrix_share = 0.0;
  /// Tokens that were generated for this step, and the time that this took, a part of data_s.
  std::int64_t generated_tokens = 0;
  double generate_s = 0.0;
  bool skipped = false;  ///< no update: the gradient was not finite
  /// The non-finite gradient, its rank, and the change of the loss scale.
  std::string skip_reason;
  std::int64_t skipped_total = 0;
  std::optional<double> loss_scale;  ///< the factor of this step's loss (fp16)
  double seconds = 0.0;  ///< from the end of the last update to the end of this one, without
                         ///< evaluation and saving
  double data_s = 0.0, forward_s = 0.0, backward_s = 0.0, reduce_s = 0.0, optimizer_s = 0.0;
  double comm_s = 0.0;     ///< waits and copies of collectives, part of the other times
  double receive_s = 0.0;  ///< part of comm_s: receives from other stages of the pipeline
  memory::TierUse disk;    ///< of what rests on a disk; the leader's
  /// Time to copy pieces that a background save has not written yet.
  double save_s = 0.0;
  std::int64_t mem_peak_bytes = 0;  ///< maximum over the ranks
  /// The distributions of weights and gradients; on the leader only, in the steps that
  /// tensorboard.histograms selects.
  std::vector<report::NamedHistogram> histograms;
  bool stop_requested = false;  ///< a signal asked all ranks to stop after this step
  int stop_signal = 0;
  bool save_proposed = false;  ///< some rank called Engine::propose_save() before this step
  bool epoch_ended = false;
};

/// Trains a plan's model on its data. Used only on the rank's own thread. All methods are
/// collective.
class Engine {
 public:
  /// `extra_ranks`: the ranks of the job that do not train, which must outlive the engine; nullptr:
  /// there are none.
  Engine(planner::PlanWithData plan,
         comm::World& world,
         std::shared_ptr<const data::Datasets> data,
         ExtraRanks* extra_ranks = nullptr);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  [[nodiscard]] const planner::PlanWithData& plan() const { return plan_; }
  [[nodiscard]] comm::World& world() { return world_; }
  [[nodiscard]] const data::Datasets& data() const { return *data_; }
  [[nodiscard]] TrainState& state() { return state_; }
  [[nodiscard]] parallel::ModelInstance& model() { return state_.model(); }
  [[nodiscard]] parallel::Executor& executor() { return state_.executor(); }
  [[nodiscard]] std::int64_t step() const { return state_.steps(); }
  /// Returns the number of samples of the training data trained so far.
  [[nodiscard]] std::int64_t samples() const { return samples_; }
  [[nodiscard]] std::int64_t max_steps() const;
  [[nodiscard]] memory::Usage memory() const { return memory::current_ledger().usage(); }

  /// Initializes the weights, from seed and names or from model.from.
  /// `nudge`: then moves each weight by this fraction of itself, up or down by its place.
  void initialize_weights(double nudge = 0.0) { state_.initialize_weights(nudge); }
  /// Computes with the current model the tensors that the data needs from it
  /// (Dataset::made_by_model()); call it before the first step. `keep`: a file that stores them for
  /// resuming; empty: none.
  void make_reference(const std::filesystem::path& keep = {});
  /// Reads the tensors that make_reference() stored. Returns whether they existed, the same on
  /// every rank.
  bool read_reference(const std::filesystem::path& kept);
  /// For trainings that generate their own data (experience.h): call it when the weights are set,
  /// before the first step. `run_dir`: where the data is kept for a resumed run; empty: nowhere.
  void begin_experience(const std::filesystem::path& run_dir = {},
                        Keeping keeping = Keeping::Append);
  /// Makes one update on the next global batch of the data. Throws the errors of
  /// TrainState::step().
  StepReport train_step();
  /// Computes what each sample of the next step contributes to its gradient, without an update;
  /// call it at most once, instead of the next train_step(). Time: that of an update and of one
  /// more in micro-batches of one sample. Memory: one more gradient.
  std::vector<Contribution> contributions();

  /// The parts of the engine that write checkpoints and that evaluate.
  [[nodiscard]] Saver& saver() { return saver_; }
  [[nodiscard]] Evaluator& evaluator() { return evaluator_; }
  /// Saver::save(), Evaluator::evaluate() and Sampler::sample().
  std::filesystem::path save(const std::filesystem::path& root) { return saver_.save(root); }
  EvalReport evaluate(const EvalRounds& rounds = {}) { return evaluator_.evaluate(rounds); }
  std::string sample() { return sampler_.sample(); }

  /// Loads weights, optimizer state, step and data position, whatever layout wrote the checkpoint.
  void load(const checkpoint::Checkpoint& checkpoint);
  /// Waits until no transfer of this rank is under way. Call it before the ranks end.
  void finish() { state_.wait(); }
  /// Exclude the time between them (evaluation, saving) from StepReport::seconds.
  void pause_clock();
  void resume_clock();

 private:
  /// Starts the clock of the next step, and the count of its communication time.
  void start_clock();
  [[nodiscard]] checkpoint::Meta meta() const;
  nn::Batch load_micro(const data::GlobalBatch& batch, int micro) const;
  /// Returns samples [begin, end) of the batch.
  [[nodiscard]] nn::Batch load_samples(const data::GlobalBatch& batch,
                                       std::int64_t begin,
                                       std::int64_t end) const;
  [[nodiscard]] int micros_of(const data::GlobalBatch& batch) const;
  /// Fills the fields of the report that count tokens. `padding`: of the whole batch.
  void count_tokens(const data::GlobalBatch& batch, std::int64_t padding, StepReport& report);
  /// Padding positions of the micro-batches that this rank has loaded, on the rank that counts them
  /// for all that share them; else 0.
  [[nodiscard]] double own_padding() const;
  /// Returns the number of micro-batches of `samples` samples on all ranks together.
  [[nodiscard]] std::int64_t micro_batches(std::int64_t samples) const;
  StepExtras extras(StepReport& report);
  /// Freezes and thaws parameters as the plan requires for the step after `steps` steps and
  /// `samples` samples.
  void follow_freezing(std::int64_t steps, std::int64_t samples);

  planner::PlanWithData plan_;
  comm::World& world_;
  std::shared_ptr<const data::Datasets> data_;
  data::SampleOrder order_;
  data::BatchPlan batches_;
  TrainState state_;
  std::unique_ptr<Experience> experience_;  ///< nullptr: the dataset contains the data
  Saver saver_;
  EvalModel eval_model_;
  Evaluator evaluator_;
  Sampler sampler_;
  std::int64_t samples_ = 0, tokens_ = 0;
  std::map<int, std::int64_t> padding_;  // of this rank's micro-batches, by their numbers
  std::int64_t summed_padding_ = 0;      // of the whole step
  double clock_ = 0.0;                   ///< start time of the step
  double paused_at_ = 0.0;
  double comm_before_pause_ = 0.0;  ///< seconds spent in collectives of this step so far
  std::vector<bool> frozen_sets_;   ///< see parallel::FreezeSchedule
};

/// Opens the plan's data and tokenizes what is not in the cache.
std::shared_ptr<const data::Datasets> open_data(const planner::Plan& plan,
                                                const data::TokenizeOptions& how);
/// The TrainState options of a plan.
TrainStateOptions train_state_options(const planner::PlanWithData& plan);
/// The third of the four steps (configuration, launch, initialize, fit): returns an engine with
/// initialized weights. Without `data` it opens that of the plan.
std::unique_ptr<Engine> initialize(const planner::Plan& plan,
                                   comm::World& world,
                                   std::shared_ptr<const data::Datasets> data = nullptr);
/// The same for a plan whose data is `data`.
std::unique_ptr<Engine> initialize(const planner::PlanWithData& plan,
                                   comm::World& world,
                                   std::shared_ptr<const data::Datasets> data);

}  // namespace tessera::engine
