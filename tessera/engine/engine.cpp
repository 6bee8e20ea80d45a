// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/engine.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/clock.h"
#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/engine/batches.h"
#include "tessera/engine/evaluate.h"
#include "tessera/engine/generate.h"
#include "tessera/nn/context_parallel/context_parallel.h"
#include "tessera/parallel/pipeline/simulate.h"
#include "tessera/planner/recipe.h"
#include "tessera/tensor/init.h"

namespace tessera::engine {
namespace {

/// The ranks among which the tokens of a global batch are spread, those of one micro-batch
/// together.
constexpr mesh::AxisSet kTokens = {mesh::Axis::DpRep, mesh::Axis::DpShard, mesh::Axis::Cp};

/// Overflows in a row at the smallest scale after which a run ends whose scaler never gives up.
constexpr int kHopeless = 10;

std::string place_of(const parallel::GradientFold::Culprit& culprit) {
  return fmt::format("the gradient of {} in block {} on rank {} (micro-batch {}) is not finite",
                     culprit.tensor,
                     culprit.block,
                     culprit.rank,
                     culprit.micro);
}

/// Refuses stages that do not hold the whole model between them, all of it once: ranks that cut it
/// in different places. Collective.
void check_stages(comm::World& world, parallel::ModelInstance& model) {
  std::int64_t blocks = 0, parameters = 0;
  for (int chunk = 0; chunk < model.layout().chunks; ++chunk) {
    const auto [first, last] = model.blocks_of(chunk);
    blocks += std::max(0, last - first);
  }
  for (const parallel::FlatGroup& group : model.groups()) {
    if (!group.counted) continue;
    for (const Segment& segment : group.layout.segments())
      parameters += segment.info->numel();
  }
  const std::vector<double> held =
      world.all_reduce(world.group({mesh::Axis::Pp}),
                       {static_cast<double>(blocks), static_cast<double>(parameters)},
                       comm::Op::Sum,
                       TESSERA_HERE("what the stages hold"));
  const auto all_blocks = static_cast<std::int64_t>(held[0]);
  const auto all_parameters = static_cast<std::int64_t>(held[1]);
  TESSERA_REQUIRE(
      all_blocks == model.num_blocks() && all_parameters == model.num_parameters(),
      Bug,
      fmt::format("the stages hold {} blocks with {} parameters between them, and the model has {} "
                  "blocks with {}",
                  all_blocks,
                  all_parameters,
                  model.num_blocks(),
                  model.num_parameters()),
      "");
}

}  // namespace

Engine::Engine(planner::Plan plan, comm::World& world, std::shared_ptr<const data::Datasets> data)
    : plan_(std::move(plan)),
      world_(world),
      data_(std::move(data)),
      rule_(planner::make_rule(plan_)),
      schedule_(planner::make_schedule(plan_, *rule_)),
      decay_ramp_(planner::make_decay_ramp(plan_)),
      order_(data_->train->size(),
             plan_.config.data.shuffle,
             static_cast<std::uint64_t>(plan_.config.trainer.seed)),
      batches_(data_->train->size(),
               plan_.global_batch,
               plan_.config.data.drop_last,
               planner::batch_sizes(plan_)) {
  if (plan_.working == DType::F16) scaler_.emplace(plan_.scaling, plan_.scaling_stage);
  model_ = std::make_unique<parallel::ModelInstance>(
      plan_.model.model, plan_.weight_layout, world_, plan_.stages);
  if (plan_.stages.stages > 1) {
    check_stages(world_, *model_);
    link_ = std::make_unique<parallel::StageLink>(world_,
                                                  plan_.model.model,
                                                  plan_.stages,
                                                  plan_.working,
                                                  model_->tensor_parallel(),
                                                  plan_.config.parallel.pipeline.scatter_gather);
  }
  weights_ = std::make_unique<parallel::WeightGather>(*model_, plan_.gather);
  gradients_ = std::make_unique<parallel::GradientFold>(world_, *model_, plan_.fold);
  // Where a run goes on after a step that is not finite, what was wrong is known from that step.
  gradients_->watch(scaler_.has_value() || plan_.config.trainer.on_nonfinite == "skip");
  optimizer_ = std::make_unique<parallel::ShardedOptimizer>(
      world_,
      *model_,
      *rule_,
      plan_.zero_stage,
      [this](const ParamInfo& info) { return planner::setting_of(plan_, rule_->base_lr(), info); },
      plan_.kept);
  executor_ = std::make_unique<parallel::Executor>(
      *model_,
      std::vector<parallel::Policy*>{weights_.get(), gradients_.get()},
      plan_.recompute,
      link_.get());
  start_clock();
}

Engine::~Engine() = default;

void Engine::initialize_weights() {
  if (plan_.weights) {
    optimizer_->fill(plan_.weights);
    return;
  }
  const auto seed = static_cast<std::uint64_t>(plan_.config.trainer.seed);
  optimizer_->fill([seed](const ParamInfo& info, std::int64_t begin, std::int64_t end, float* out) {
    initialize_range(info, seed, begin, at::from_blob(out, {end - begin}, at::kFloat));
  });
}

nn::Batch Engine::load_micro(const data::GlobalBatch& batch, int micro) const {
  const comm::Group& group = world_.group(mesh::AxisSet::dp());
  const std::int64_t b = plan_.micro_batch;
  const std::int64_t begin =
      std::min(batch.size, (static_cast<std::int64_t>(micro) * group.size() + group.index) * b);
  const std::int64_t end = std::min(batch.size, begin + b);
  std::vector<std::int64_t> samples, numbers;
  for (std::int64_t i = begin; i < end; ++i) {
    samples.push_back(order_(batch.epoch, batch.first + i));
    numbers.push_back(batch.consumed_before + i);
  }
  nn::Batch out = make_batch(*data_->train, samples, numbers);
  if (model_->context_parallel() != nullptr) out = nn::own_tokens(out, *model_->context_parallel());
  return out;
}

int Engine::micros_of(const data::GlobalBatch& batch) const {
  const std::int64_t each = world_.mesh().size(mesh::AxisSet::dp()) * plan_.micro_batch;
  std::int64_t micros = (batch.size + each - 1) / each;
  // A batch that is smaller than the others fills the last round with micro-batches of nothing.
  const std::int64_t round = plan_.schedule.whole_rounds ? plan_.stages.stages : 1;
  return static_cast<int>((micros + round - 1) / round * round);
}

const std::vector<parallel::Action>& Engine::actions(int micros) {
  std::vector<parallel::Action>& known = actions_[micros];
  if (!known.empty()) return known;
  const parallel::StageLayout& layout = plan_.stages;
  if (layout.stages == 1) return known = parallel::accumulation_schedule(micros);
  const parallel::PipelineSize size{layout.stages, layout.chunks, micros};
  const parallel::StageActions all = parallel::all_actions(plan_.schedule, size);
  const auto fault = parallel::find_fault(all, size, layout.placement, comm::kMostMessages);
  TESSERA_REQUIRE(!fault, Bug, "the pipeline's schedule is wrong: " + *fault, "");
  return known = all[static_cast<std::size_t>(model_->stage())];
}

/// How many there are, which only the objective's stage can tell; all others hear of it once.
std::size_t Engine::num_denominators(std::size_t mine) {
  if (plan_.stages.stages == 1) return mine;
  if (!num_denominators_) {
    const std::vector<double> most = world_.all_reduce(world_.group({mesh::Axis::Pp}),
                                                       {static_cast<double>(mine)},
                                                       comm::Op::Max,
                                                       TESSERA_HERE("denominators of the loss"));
    num_denominators_ = static_cast<std::size_t>(most.front());
  }
  return *num_denominators_;
}

parallel::StepInput Engine::step_input(const data::GlobalBatch& batch,
                                       int micros,
                                       StepReport& report) {
  parallel::StepInput input;
  input.step = step_;
  input.seed = static_cast<std::uint64_t>(plan_.config.trainer.seed);
  input.num_micros = micros;
  input.loss_scale = scaler_ ? scaler_->scale() : 1.0;
  input.load = [this, &batch](int micro) { return load_micro(batch, micro); };
  input.global_denominators = [this, &report](const std::vector<std::vector<double>>& mine) {
    // Counts are integers below 2^53, so their sum is exact in any order. What else the ranks have
    // to know of each other once a step rides along.
    std::vector<double> sums = mine.front();
    for (std::size_t m = 1; m < mine.size(); ++m) {
      for (std::size_t d = 0; d < sums.size(); ++d)
        sums[d] += mine[m][d];
    }
    // Every stage loads the same samples; the objective's counts.
    const std::size_t counts = num_denominators(sums.size());
    sums.resize(counts);
    // Ranks that share a micro-batch count its tokens once.
    if (world_.group(mesh::AxisSet::tp()).index > 0) std::fill(sums.begin(), sums.end(), 0.0);
    const checkpoint::BackgroundSave::Standing save =
        saving() ? background_->standing() : checkpoint::BackgroundSave::Standing();
    sums.push_back(save_proposed_ ? 1.0 : 0.0);
    sums.push_back(save.busy ? 1.0 : 0.0);
    sums.push_back(save.failed ? 1.0 : 0.0);
    sums = world_.all_reduce(world_.everyone(),
                             std::move(sums),
                             comm::Op::Sum,
                             TESSERA_HERE("token counts of the step"));
    report.save_proposed = sums[counts] > 0;
    if (saving()) background_->advance({sums[counts + 1] > 0, sums[counts + 2] > 0});
    sums.resize(counts);
    return sums;
  };
  return input;
}

StepReport Engine::train_step() {
  StepReport report;
  world_.set_step(step_ + 1);
  const data::GlobalBatch batch = batches_.at(samples_);
  const int micros = micros_of(batch);
  const parallel::StepInput input = step_input(batch, micros, report);
  // A skipped step does not advance the schedule.
  const std::int64_t update = step_ - skipped_ + 1;
  gradients_->keep_own(optimizer_->compresses(update));
  parallel::StepOutput out = executor_->train(actions(micros), input);

  const double reduce_start = now_s();
  const std::vector<double> sums = finish_gradients(input.loss_scale);
  report.step = step_ + 1;
  report.epoch =
      static_cast<double>(batch.consumed_after) / static_cast<double>(data_->train->size());
  report.grad_norm = optim::gradient_norm(sums) / input.loss_scale;
  if (scaler_) report.loss_scale = input.loss_scale;
  fold_losses(std::move(out), micros, report);
  report.reduce_s = now_s() - reduce_start;

  const bool finite = std::isfinite(report.loss) && std::isfinite(report.grad_norm);
  // Gradients alone that are not finite are what the scale of an fp16 loss answers to.
  const bool scalable = scaler_ && std::isfinite(report.loss);
  if (!finite && !scalable && plan_.config.trainer.on_nonfinite == "stop")
    refuse_nonfinite(report, input);
  if (finite) report.save_s = leave_save_behind();
  const double update_start = now_s();
  report.lr = schedule_->lr(update);
  if (finite) {
    optimizer_->update(*gradients_,
                       {.lr = report.lr,
                        .grad_scale = clip(report.grad_norm) / input.loss_scale,
                        .step = update,
                        .beta1 = schedule_->beta1(update),
                        .beta2 = schedule_->beta2(update),
                        .decay_scale = decay_ramp_.factor(update)});
  } else {
    report.skipped = true;
    ++skipped_;
    report.skip_reason = first_nonfinite(sums);
  }
  if (scaler_) follow_scale(report);
  report.optimizer_s = now_s() - update_start;

  ++step_;
  samples_ = batch.consumed_after;
  report.batch_tokens = batch.size * plan_.sequence_length;
  tokens_ += report.batch_tokens;
  report.tokens = tokens_;
  report.skipped_total = skipped_;
  report.epoch_ended = batches_.at(samples_).epoch != batch.epoch;
  const parallel::StepTimes times = executor_->take_times();
  report.data_s = times.data;
  report.forward_s = times.forward;
  report.backward_s = times.backward;
  report.comm_s = std::exchange(comm_before_pause_, 0.0) + world_.transport().take_comm_seconds();
  report.receive_s = times.receive;
  const double now = now_s();
  report.seconds = now - clock_;
  clock_ = now;
  return report;
}

/// Sums of squares of the finished gradient, which is scaled still.
std::vector<double> Engine::finish_gradients(double scale) {
  gradients_->finish();
  const double limit = plan_.config.gradient_clip_value;
  if (limit <= 0) return gradients_->chunk_sums();
  // What is infinite must be seen before it is clipped to the limit.
  std::vector<double> sums = gradients_->chunk_sums();
  if (!std::isfinite(optim::gradient_norm(sums))) return sums;
  gradients_->clamp(limit * scale);
  return gradients_->chunk_sums();
}

std::string Engine::first_nonfinite(const std::vector<double>& sums) const {
  if (culprit_) return place_of(*culprit_);
  const auto suspect = gradients_->suspect(sums);
  if (!suspect) return "the loss is not finite";
  return fmt::format(
      "the gradient of {} in block {} is finite on every rank and its sum over them is not",
      suspect->tensor,
      suspect->block);
}

/// Moves the loss scale; every rank saw the same sums, so all move alike.
void Engine::follow_scale(StepReport& report) {
  const double scale = *report.loss_scale;
  hopeless_ = report.skipped && scaler_->at_smallest() ? hopeless_ + 1 : 0;
  const bool stops = plan_.config.trainer.on_nonfinite == "stop";
  try {
    scaler_->update(report.skipped);
  } catch (const Error& error) {
    if (error.kind() != Error::Kind::Numeric) throw;
    if (stops) refuse_overflow(report, error.what());
  }
  if (!report.skipped) return;
  if (stops && hopeless_ >= kHopeless) {
    refuse_overflow(
        report,
        fmt::format("gradients overflowed fp16 {} times in a row at the {} loss scale, {}",
                    hopeless_,
                    scaler_->dynamic() ? "smallest" : "fixed",
                    text::number(scale)));
  }
  report.skip_reason +=
      scale == scaler_->scale()
          ? fmt::format("; loss scale {} stays", text::number(scale))
          : fmt::format(
                "; loss scale {} -> {}", text::number(scale), text::number(scaler_->scale()));
}

double Engine::clip(double norm) const {
  // Clipping can be left off during the warm-up, as long as the learning rate itself bounds the
  // step.
  const std::int64_t updates = step_ - skipped_;
  if (plan_.config.trainer.clip_after_warmup && updates <= schedule_->warmup_steps()) return 1.0;
  return optim::clip_coefficient(norm, plan_.config.gradient_clipping);
}

/// The loss is the fp64 sum over micro-batches j = m * n + r in ascending order, on every rank; of
/// a micro-batch whose tokens ranks share, over theirs in rank order.
void Engine::fold_losses(parallel::StepOutput out, int micros, StepReport& report) {
  if (plan_.stages.stages > 1) {
    // A block's loss stands on one stage and is zero on the others, so that sum is exact.
    const comm::Group& column = world_.group({mesh::Axis::Pp});
    out.block_losses = world_.all_reduce(
        column, std::move(out.block_losses), comm::Op::Sum, TESSERA_HERE("losses of the stages"));
  }
  const std::vector<double> mine = out.losses(micros);
  // What else the ranks have to know of each other at a step's end rides along.
  std::vector<double> values = mine;
  values.push_back(static_cast<double>(memory().total_peak));
  values.push_back(static_cast<double>(world_.control().stop_requested.load()));
  const parallel::GradientFold::Finding finding = gradients_->finding();
  values.insert(values.end(), finding.begin(), finding.end());
  const std::vector<int>& group = world_.group(kTokens).ranks;
  const std::vector<double> all =
      world_.all_gather(world_.everyone(), values, TESSERA_HERE("losses of the micro-batches"));
  const std::size_t width = values.size();
  micro_losses_.clear();
  for (std::size_t m = 0; m < mine.size(); ++m) {
    for (const int r : group)
      micro_losses_.push_back(all[static_cast<std::size_t>(r) * width + m]);
  }
  for (const double loss : micro_losses_)
    report.loss += loss;
  std::vector<double> findings;
  for (int r = 0; r < world_.size(); ++r) {
    const std::size_t at = static_cast<std::size_t>(r) * width + mine.size();
    report.mem_peak_bytes = std::max(report.mem_peak_bytes, static_cast<std::int64_t>(all[at]));
    report.stop_signal = std::max(report.stop_signal, static_cast<int>(all[at + 1]));
    for (std::size_t i = 0; i < finding.size(); ++i)
      findings.push_back(all[at + 2 + i]);
  }
  report.stop_requested = report.stop_signal != 0;
  culprit_ = gradients_->culprit(findings);
}

/// The step runs once more, and every gradient is looked at as it is made.
std::optional<parallel::GradientFold::Culprit> Engine::find_culprit(
    const parallel::StepInput& input) {
  gradients_->start_diagnosis();
  executor_->train(actions(input.num_micros), input);
  return gradients_->diagnosis();
}

void Engine::refuse_nonfinite(const StepReport& report, const parallel::StepInput& input) {
  const comm::Group& group = world_.group(kTokens);
  const std::size_t shares = static_cast<std::size_t>(world_.mesh().size(mesh::Axis::Cp));
  std::string where;
  for (std::size_t j = 0; j < micro_losses_.size() && where.empty(); ++j) {
    if (std::isfinite(micro_losses_[j])) continue;
    where = fmt::format("the loss of micro-batch {} on rank {} is {}",
                        j / shares,
                        group.ranks[j % static_cast<std::size_t>(group.size())],
                        micro_losses_[j]);
  }
  if (const auto culprit = culprit_ ? culprit_ : find_culprit(input))
    where += (where.empty() ? "" : "; ") + place_of(*culprit);
  throw Error(Error::Kind::Numeric,
              fmt::format("diverged at step {}: {}",
                          report.step,
                          where.empty() ? "the gradient norm overflowed" : where),
              fmt::format("{}lower optimizer.lr, lengthen the warm-up or set gradient_clipping; "
                          "trainer.on_nonfinite \"skip\" goes on "
                          "without the update. The last checkpoint is kept",
                          scaler_ ? "values beyond 65504 are infinite in fp16, and no loss scale "
                                    "helps a forward pass: use bf16; or "
                                  : ""));
}

void Engine::refuse_overflow(const StepReport& report, const std::string& why) {
  throw Error(
      Error::Kind::Numeric,
      fmt::format("diverged at step {}: {}; {}", report.step, why, report.skip_reason),
      "use bf16 (\"bf16\": {\"enabled\": true}), lower optimizer.lr, or allow a smaller scale "
      "(fp16.min_loss_scale, fp16.min_scale or fp16.loss_scale); trainer.on_nonfinite "
      "\"skip\" goes on. The last checkpoint is kept");
}

EvalReport Engine::evaluate(const EvalRounds& rounds) {
  optimizer_->wait_weights();
  TESSERA_REQUIRE(data_->validation != nullptr,
                  Config,
                  "there is no validation data to evaluate on",
                  "set data.validation or data.validation_fraction");
  const planner::EvalOptions& options = plan_.config.eval;
  const data::Dataset& dataset = *data_->validation;
  return engine::evaluate(*executor_,
                          world_,
                          dataset,
                          std::min(dataset.size(), options.batches * options.micro_batch),
                          options.micro_batch,
                          rounds);
}

std::string Engine::sample() {
  optimizer_->wait_weights();
  std::string text;
  // Sharded weights are gathered together, layers are computed together, and stages hand flows on:
  // then all ranks that take part make the same text. So do those that share tokens in training:
  // here each has all.
  const bool with_speaker = world_.group(mesh::AxisSet::dp()).index == 0;
  if (with_speaker || plan_.zero_stage == 3) {
    const planner::EvalOptions& options = plan_.config.eval;
    Generator generator(*executor_, *plan_.tokenizer, plan_.model);
    GenerateOptions how;
    how.max_new_tokens = options.max_new_tokens;
    how.sampler = {.temperature = options.temperature, .top_k = options.top_k, .top_p = 1.0};
    how.seed = static_cast<std::uint64_t>(plan_.config.trainer.seed);
    text = options.prompt;
    generator.run(options.prompt, how, [&](std::string_view piece) { text += piece; });
  }
  world_.transport().barrier(world_.everyone(), TESSERA_HERE("sample text"))->wait();
  return world_.is_leader() ? text : std::string();
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
