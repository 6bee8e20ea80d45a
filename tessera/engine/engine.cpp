// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/engine.h"

#include <algorithm>
#include <filesystem>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/clock.h"
#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/checkpoint/node_parts.h"
#include "tessera/engine/batches.h"
#include "tessera/engine/histograms.h"
#include "tessera/engine/reference.h"
#include "tessera/engine/resume_curve.h"
#include "tessera/models/hf_objective.h"
#include "tessera/planner/course.h"
#include "tessera/planner/data_plan.h"
#include "tessera/planner/model_plan.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/recipe.h"
#include "tessera/planner/run_plan.h"
#include "tessera/planner/values.h"
#include "tessera/report/monitors/tensorboard.h"

namespace tessera::engine {
namespace {

std::unique_ptr<Experience> make_experience(const planner::PlanWithData& plan,
                                            comm::World& world,
                                            TrainState& state,
                                            const data::Dataset& train,
                                            ExtraRanks* extra_ranks) {
  const ExperienceKind* const kind = experience_of(plan.data().task.get());
  return kind == nullptr ? nullptr : kind->make(plan, world, state, train, extra_ranks);
}

}  // namespace

Engine::Engine(planner::PlanWithData plan,
               comm::World& world,
               std::shared_ptr<const data::Datasets> data,
               ExtraRanks* extra_ranks)
    : plan_(std::move(plan)),
      world_(world),
      data_(std::move(data)),
      order_(data_->train->size(),
             // Streamed data has an order of its own.
             plan_.data().options.shuffle && plan_.data().options.streaming == 0,
             static_cast<std::uint64_t>(plan_.recipe().seed)),
      batches_(data_->train->size(),
               plan_.recipe().global_batch,
               plan_.data().options.drop_last,
               planner::batch_sizes(plan_.recipe())),
      state_(train_state_options(plan_), world),
      experience_(make_experience(plan_, world_, state_, *data_->train, extra_ranks)),
      saver_(plan_.run().checkpoint.use_node_local_storage,
             world_,
             state_,
             experience_.get(),
             [this] { return meta(); }),
      eval_model_(plan_.run().eval.weights, planner::runs_together(plan_), world_, state_, saver_),
      evaluator_(plan_, eval_model_, experience_.get(), data_),
      sampler_(plan_, eval_model_),
      frozen_sets_(plan_.model().freezing.frozen_sets({})) {
  start_clock();
}

std::int64_t Engine::micro_batches(std::int64_t samples) const {
  const std::int64_t each = planner::micro_batch_of(plan_);
  return (samples + each - 1) / each;
}
std::int64_t Engine::max_steps() const {
  return plan_.course().max_steps;
}

Engine::~Engine() = default;

void Engine::make_reference(const std::filesystem::path& keep) {
  if (!wants_reference(*data_)) return;
  state_.wait();
  data_ = with_reference(data_,
                         executor(),
                         world_,
                         {.train_batch = planner::micro_batch_of(plan_),
                          .validation = evaluator_.samples(),
                          .validation_batch = plan_.run().eval.micro_batch});
  if (!keep.empty() && world_.is_leader()) keep_reference(*data_, keep);
  start_clock();
}

bool Engine::read_reference(const std::filesystem::path& kept) {
  if (!wants_reference(*data_)) return true;
  auto data = with_kept_reference(data_, world_, kept);
  if (data == nullptr) return false;
  data_ = std::move(data);
  return true;
}

void Engine::begin_experience(const std::filesystem::path& run_dir, Keeping keeping) {
  if (experience_ == nullptr) return;
  experience_->begin(step(), run_dir, keeping);
  start_clock();
}

/// This rank's samples of a micro-batch.
nn::Batch Engine::load_micro(const data::GlobalBatch& batch, int micro) const {
  const comm::Group& group = world_.group(mesh::AxisSet::dp());
  const std::int64_t b = planner::micro_batch_of(plan_);
  const std::int64_t number = static_cast<std::int64_t>(micro) * group.size() + group.index;
  const std::int64_t begin = std::min(batch.size, number * b);
  const std::int64_t end = std::min(batch.size, begin + b);
  if (experience_ != nullptr) {
    const std::int64_t further = experience_->num_further();
    if (begin < end || further == 0) return load_samples(batch, begin, end);
    const std::int64_t first = std::min(further, (number - micro_batches(batch.size)) * b);
    return experience_->further(first, std::min(further, first + b));
  }
  return load_samples(batch, begin, end);
}

nn::Batch Engine::load_samples(const data::GlobalBatch& batch,
                               std::int64_t begin,
                               std::int64_t end) const {
  if (experience_ != nullptr) return experience_->samples(begin, end);
  std::vector<std::int64_t> samples, numbers;
  for (std::int64_t i = begin; i < end; ++i) {
    samples.push_back(order_(batch.epoch, batch.first + i));
    numbers.push_back(batch.consumed_before + i);
  }
  return make_batch(world_, *data_->train, samples, numbers);
}

int Engine::micros_of(const data::GlobalBatch& batch) const {
  const std::int64_t ranks = world_.mesh().size(mesh::AxisSet::dp()),
                     number =
                         micro_batches(batch.size) +
                         (experience_ != nullptr ? micro_batches(experience_->num_further()) : 0);
  return state_.round_micros(static_cast<int>((number + ranks - 1) / ranks));
}

/// Numbers that ranks exchange within the collectives of a step, so that no additional collective
/// is needed.
StepExtras Engine::extras(StepReport& report) {
  StepExtras extras;
  extras.to_sum = [this] {
    std::vector<double> out = saver_.to_sum();
    out.push_back(own_padding());
    return out;
  };
  extras.summed = [this, &report](std::span<const double> sums) {
    report.save_proposed = saver_.advance(sums.first(sums.size() - 1));
    summed_padding_ = static_cast<std::int64_t>(sums.back());
  };
  extras.to_max = [this] {
    return std::vector<double>{static_cast<double>(memory().total_peak),
                               static_cast<double>(world_.control().stop_requested.load())};
  };
  extras.before_change = [this, &report] { report.save_s = saver_.before_change(); };
  const auto& tensorboard = plan_.run().sections.get<report::TensorboardOptions>();
  const bool shown = tensorboard.enabled && tensorboard.histograms > 0 &&
                     (step() + 1) % tensorboard.histograms == 0;
  if (shown) {
    extras.before_update = [this, &report] {
      report.histograms = trained_histograms(state_, state_.loss_scale());
    };
  }
  return extras;
}

void Engine::follow_freezing(std::int64_t steps, std::int64_t samples) {
  std::vector<bool> now =
      plan_.model().freezing.frozen_sets({.steps = steps, .epoch = batches_.at(samples).epoch});
  if (now == frozen_sets_) return;
  saver_.before_change();
  frozen_sets_ = std::move(now);
  TESSERA_REQUIRE(
      !plan_.model().freezing.freezes_all(frozen_sets_),
      Config,
      fmt::format("after step {} every parameter is frozen", steps),
      "let frozen_until of some optimizer.groups be no later than frozen_from of the others");
  state_.freeze_sets(frozen_sets_);
  const auto frozen = std::count(frozen_sets_.begin(), frozen_sets_.end(), true);
  log::info(fmt::format("after step {}: {} of {} scheduled sets of parameters are frozen",
                        steps,
                        frozen,
                        frozen_sets_.size()));
}

double Engine::own_padding() const {
  // The ranks with the same samples count them once.
  const mesh::AxisSet same =
      mesh::AxisSet{mesh::Axis::Pp} | mesh::AxisSet{mesh::Axis::Cp} | mesh::AxisSet::tp();
  const bool counts = world_.group(same).index == 0;
  std::int64_t sum = 0;
  for (const auto& [micro, padding] : padding_)
    sum += padding;
  return counts ? static_cast<double>(sum) : 0.0;
}

void Engine::count_tokens(const data::GlobalBatch& batch,
                          std::int64_t padding,
                          StepReport& report) {
  const StepTokens counted =
      experience_ != nullptr
          ? experience_->tokens()
          : StepTokens{.learned = batch.size * plan_.data().sequence_length - padding};
  report.padding_tokens = experience_ != nullptr ? 0 : padding;
  report.batch_tokens = counted.learned;
  report.generated_tokens = counted.generated;
  report.generate_s = counted.generate_s;
  tokens_ += counted.learned;
  report.tokens = tokens_;
}

StepReport Engine::train_step() {
  follow_freezing(step(), samples_);
  StepReport report;
  world_.set_step(step() + 1);
  const data::GlobalBatch batch = batches_.at(samples_);
  const double made_from = now_s();
  if (experience_ != nullptr) experience_->make(batch);
  const double made_s = now_s() - made_from;
  padding_.clear();
  const auto load = [&](int micro) {
    nn::Batch loaded = load_micro(batch, micro);
    padding_[micro] = padding_of(loaded);
    return loaded;
  };
  const StepResult result = state_.step(micros_of(batch), load, extras(report));
  report.step = result.step;
  report.epoch =
      static_cast<double>(batch.consumed_after) / static_cast<double>(data_->train->size());
  report.loss = result.loss;
  report.metrics = result.metrics;
  report.expert_loads = result.expert_loads;
  if (experience_ != nullptr) {
    report.save_s +=
        saver_.before_change();  // if the step was skipped, the save is still under way
    experience_->learn(report.metrics);
  }
  report.lr = result.lr;
  report.grad_norm = result.grad_norm;
  report.loss_scale = result.loss_scale;
  report.skipped = result.skipped;
  report.skip_reason = result.skip_reason;
  report.skipped_total = state_.skipped();
  report.mem_peak_bytes = static_cast<std::int64_t>(result.maxima[0]);
  report.stop_signal = static_cast<int>(result.maxima[1]);
  report.stop_requested = report.stop_signal != 0;

  samples_ = batch.consumed_after;
  report.samples = samples_;
  count_tokens(batch, summed_padding_, report);
  report.epoch_ended = batches_.at(samples_).epoch != batch.epoch;
  report.data_s = made_s + result.data_s;
  report.forward_s = result.forward_s;
  report.backward_s = result.backward_s;
  report.reduce_s = result.reduce_s;
  report.optimizer_s = result.optimizer_s;
  report.receive_s = result.receive_s;
  report.disk = result.disk;
  report.early = result.early;
  report.comm_s = std::exchange(comm_before_pause_, 0.0) + world_.transport().take_comm_seconds();
  const double now = now_s();
  report.seconds = now - clock_;
  clock_ = now;
  return report;
}

std::vector<Contribution> Engine::contributions() {
  follow_freezing(step(), samples_);
  const data::GlobalBatch batch = batches_.at(samples_);
  if (experience_ != nullptr) experience_->make(batch);
  return contributions_to(
      state_,
      world_,
      micros_of(batch),
      [&](int micro) { return load_micro(batch, micro); },
      batch.size,
      [&](std::int64_t first, std::int64_t end) { return load_samples(batch, first, end); });
}

checkpoint::Meta Engine::meta() const {
  checkpoint::Meta meta;
  state_.describe(meta);
  if (experience_ != nullptr) experience_->describe(meta);
  meta.samples = samples_;
  meta.tokens = tokens_;
  meta.config = plan_.resolved();
  if (auto objective = models::said_of(plan_.model().resolved.objective))
    meta.extra["objective"] = std::move(*objective);
  if (!plan_.model().base_fingerprint.empty()) {
    meta.extra["base"] = json::Value::object(
        {{"path",
          json::Value::string(std::filesystem::absolute(*plan_.model().options->from).string())},
         {"fingerprint", json::Value::string(plan_.model().base_fingerprint)}});
  }
  meta.extra["data"] = json::Value::string(data_->fingerprint);
  meta.extra["validation"] = json::Value::string(data_->validation_fingerprint);
  meta.extra["tokenizer"] = json::Value::string(plan_.data().tokenizer->fingerprint());
  meta.extra["threads_per_rank"] = json::Value::integer(planner::threads_of(plan_));
  meta.extra["ranks"] = json::Value::integer(world_.size());
  meta.extra["data_ranks"] = json::Value::integer(planner::data_ranks_of(plan_));
  meta.extra["schedule"] = curve_of_run(plan_);
  evaluator_.describe(meta);
  return meta;
}

void Engine::load(const checkpoint::Checkpoint& checkpoint) {
  if (const checkpoint::Ranks all = saver_.ranks(); all.nodes > 1)
    checkpoint::require_one_save(checkpoint, all);
  const comm::ActivityScope loads(world_, Activity::Load);
  follow_freezing(checkpoint.meta().step, checkpoint.meta().samples);
  state_.load(checkpoint);
  if (experience_ != nullptr) experience_->load(checkpoint);
  const checkpoint::Meta& meta = checkpoint.meta();
  samples_ = meta.samples;
  tokens_ = meta.tokens;
  evaluator_.load(meta);
  start_clock();
}

void Engine::start_clock() {
  clock_ = now_s();
  static_cast<void>(world_.transport().take_comm_seconds());
}
void Engine::pause_clock() {
  paused_at_ = now_s();
  comm_before_pause_ += world_.transport().take_comm_seconds();
}
void Engine::resume_clock() {
  clock_ += now_s() - paused_at_;
  static_cast<void>(world_.transport().take_comm_seconds());
}

}  // namespace tessera::engine
