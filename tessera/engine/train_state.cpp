// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/train_state.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>
#include <utility>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/clock.h"
#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/philox.h"
#include "tessera/base/text.h"
#include "tessera/base/trace.h"
#include "tessera/engine/expert_balance.h"
#include "tessera/nn/context_parallel/context_parallel.h"
#include "tessera/parallel/pipeline/simulate.h"
#include "tessera/tensor/init.h"

namespace tessera::engine {
namespace {

/// The ranks over which the tokens of a global batch are distributed; ranks that share a
/// micro-batch are adjacent.
constexpr mesh::AxisSet kTokens = mesh::AxisSet::tokens();

/// A run whose loss scaler never gives up ends after this many consecutive overflows at the
/// smallest scale.
constexpr int kHopeless = 10;

/// The values of `source`, each moved by the fraction `nudge` of itself.
parallel::FillRange nudged(parallel::FillRange source, double nudge) {
  return [source = std::move(source), nudge](
             const ParamInfo& info, std::int64_t begin, std::int64_t end, float* out) {
    source(info, begin, end, out);
    const std::uint64_t name = files::xxh3(std::as_bytes(std::span(info.name)));
    for (std::int64_t i = begin; i < end; ++i) {
      const bool up = (mix64(name, static_cast<std::uint64_t>(i)) & 1U) != 0;
      float& value = out[i - begin];
      value = static_cast<float>(static_cast<double>(value) * (up ? 1.0 + nudge : 1.0 - nudge));
    }
  };
}

std::string place_of(const parallel::GradientReduction::Culprit& culprit) {
  return fmt::format("the gradient of {} in block {} on rank {} (micro-batch {}) is not finite",
                     culprit.tensor,
                     culprit.block,
                     culprit.rank,
                     culprit.micro);
}

/// Refuses stages that do not together hold the whole model exactly once, because ranks have
/// different bounds. Collective.
void check_stages(comm::World& world, parallel::ModelInstance& model) {
  std::int64_t blocks = 0, parameters = 0;
  for (int chunk = 0; chunk < model.layout().chunks; ++chunk) {
    const auto [first, last] = model.blocks_of(chunk);
    blocks += std::max(0, last - first);
  }
  for (const parallel::FlatGroup& group : model.groups()) {
    if (!group.counted) continue;
    for (const FlatParam& param : group.layout.params())
      parameters += group.tile ? param.info->local_numel() : param.info->numel();
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

TrainState::TrainState(TrainStateOptions options, comm::World& world)
    : options_(std::move(options)), world_(world) {
  TESSERA_ASSERT(options_.rule != nullptr && options_.schedule != nullptr);
  if (options_.scaling) scaler_.emplace(options_.scaling->options, options_.scaling->zero_stage);
  const auto disk = [&](const std::string& folder) {
    memory::TierOptions of = options_.disk;
    of.folder = folder;
    return memory::tiers().get("disk")(of);
  };
  if (options_.weight_offload) {
    weight_tier_ = disk(options_.weight_offload->folder);
    options_.weight_layout.tier = weight_tier_.get();
  }
  model_ = std::make_unique<parallel::ModelInstance>(
      options_.model, options_.weight_layout, world_, options_.stages);
  if (options_.weight_layout.apart) model_->freeze_sets(options_.frozen_sets);
  if (options_.stages.stages > 1) {
    check_stages(world_, *model_);
    link_ = std::make_unique<parallel::StageLink>(world_,
                                                  options_.model,
                                                  options_.stages,
                                                  options_.weight_layout.working,
                                                  model_->tensor_parallel(),
                                                  options_.scatter_gather);
  }
  weights_ = std::make_unique<parallel::WeightGather>(*model_, options_.gather);
  parallel::StatePlace place;
  parallel::SumPlace sums;
  if (options_.offload) {
    tier_ = disk(options_.offload->folder);
    place = {.tier = tier_.get(),
             .unit_elements = options_.offload->unit_elements,
             .buffers = options_.offload->buffers,
             .share = options_.offload->share};
    if (options_.offload->gradients)
      sums = {.tier = tier_.get(), .buffers = options_.offload->buffers};
  }
  gradients_ =
      std::make_unique<parallel::GradientReduction>(world_, *model_, options_.reduction, sums);
  // If a run continues after a non-finite step, that step itself must find the cause.
  // The same is true if the weights change before the gradients are known to be finite.
  gradients_->watch(scaler_.has_value() || options_.on_nonfinite == OnNonfinite::Skip ||
                    options_.streamed_updates);
  // The host updates what rests on its disk.
  place.on_host = options_.states_on_host || options_.offload;
  // Elements that are clipped one by one are not known before all have arrived.
  place.early_updates = options_.early_updates && options_.clip_value <= 0;
  place.streamed = options_.streamed_updates;
  optimizer_ = std::make_unique<parallel::ShardedOptimizer>(world_,
                                                            *model_,
                                                            *options_.rule,
                                                            options_.zero_stage,
                                                            options_.settings,
                                                            options_.kept,
                                                            options_.trained_alone,
                                                            place);
  if (options_.activation_offload) {
    activation_tier_ = disk(options_.activation_offload->folder);
    activations_ =
        parallel::activations_in(*activation_tier_, options_.activation_offload->buffers);
  }
  if (const c10::Device device = model_->device();
      !device.is_cpu() && (options_.activation_offload || options_.host_activations)) {
    const int buffers = options_.activation_offload ? options_.activation_offload->buffers
                                                    : *options_.host_activations;
    activations_ = parallel::activations_on_host(device, buffers, std::move(activations_));
  }
  if (const nn::TensorParallel* const tensor = model_->tensor_parallel();
      tensor != nullptr && options_.partition_activations) {
    activations_ =
        parallel::partitioned_activations(*tensor->world, *tensor->group, std::move(activations_));
  }
  executor_ = std::make_unique<parallel::Executor>(
      *model_,
      std::vector<parallel::Policy*>{weights_.get(), gradients_.get()},
      options_.recompute,
      link_.get(),
      activations_.get());
  if (ExpertBalance::has_experts(options_.model))
    experts_ = std::make_unique<ExpertBalance>(world_, *model_, options_.stages.stages);
  terms_ =
      std::make_unique<TermReduction>(world_, options_.stages.stages, model_->num_blocks() - 1);
}

TrainState::~TrainState() = default;

void TrainState::initialize_weights(double nudge) {
  parallel::FillRange weights = options_.weights;
  if (!weights) {
    weights = [seed = options_.seed](
                  const ParamInfo& info, std::int64_t begin, std::int64_t end, float* out) {
      initialize_range(info, seed, begin, at::from_blob(out, {end - begin}, at::kFloat));
    };
  }
  optimizer_->fill(nudge == 0.0 ? weights : nudged(std::move(weights), nudge));
}

int TrainState::round_micros(int num_micros) const {
  return options_.pipeline.full_round ? std::max(num_micros, options_.stages.stages) : num_micros;
}

/// The actions of this rank in a step of `num_micros` micro-batches.
const std::vector<parallel::Action>& TrainState::actions(int num_micros) {
  std::vector<parallel::Action>& known = actions_[num_micros];
  if (!known.empty()) return known;
  const parallel::StageLayout& layout = options_.stages;
  if (layout.stages == 1) return known = parallel::accumulation_schedule(num_micros);
  const parallel::PipelineSize size{layout.stages, layout.chunks, num_micros};
  const parallel::StageActions all = parallel::all_actions(options_.pipeline, size);
  const auto fault = parallel::find_fault(all, size, layout.placement, comm::kMostMessages);
  TESSERA_REQUIRE(!fault, Bug, "the pipeline's schedule is wrong: " + *fault, "");
  return known = all[static_cast<std::size_t>(model_->stage())];
}

/// The number of denominators, which only the objective's stage knows; the other stages learn it in
/// the first step.
std::size_t TrainState::num_denominators(std::size_t mine) {
  if (options_.stages.stages == 1) return mine;
  if (!num_denominators_) {
    const std::vector<double> most = world_.all_reduce(world_.group({mesh::Axis::Pp}),
                                                       {static_cast<double>(mine)},
                                                       comm::Op::Max,
                                                       TESSERA_HERE("denominators of the loss"));
    num_denominators_ = static_cast<std::size_t>(most.front());
  }
  return *num_denominators_;
}

/// The global denominators of the step, and the caller's sums with them. Counts are integers below
/// 2^53, so their sum is exact in any order.
std::vector<double> TrainState::sum_denominators(const std::vector<std::vector<double>>& mine,
                                                 const StepExtras& extras) {
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
  if (experts_ != nullptr) {
    const std::vector<double> common = experts_->take_counts();
    sums.insert(sums.end(), common.begin(), common.end());
  }
  const std::size_t own = sums.size();
  if (extras.to_sum) {
    const std::vector<double> more = extras.to_sum();
    sums.insert(sums.end(), more.begin(), more.end());
  }
  sums = world_.all_reduce(
      world_.everyone(), std::move(sums), comm::Op::Sum, TESSERA_HERE("token counts of the step"));
  if (extras.summed) extras.summed(std::span(sums).subspan(own));
  sums.resize(own);
  return sums;
}

parallel::StepInput TrainState::step_input(int num_micros,
                                           const LoadMicro& load,
                                           const StepExtras& extras) {
  parallel::StepInput input;
  input.step = step_;
  input.seed = options_.seed;
  input.num_micros = num_micros;
  input.loss_scale = loss_scale();
  input.load = [this, &load](int micro) {
    const nn::ContextParallel* const shared = model_->context_parallel();
    nn::Batch batch =
        shared == nullptr ? load(micro) : nn::own_tokens(load(micro), *shared, model_->objective());
    if (experts_ != nullptr) experts_->count(batch);
    return batch;
  };
  input.global_denominators = [this, &extras](const std::vector<std::vector<double>>& mine) {
    return sum_denominators(mine, extras);
  };
  return input;
}

StepResult TrainState::step(const std::vector<nn::Batch>& micro_batches, const StepExtras& extras) {
  TESSERA_REQUIRE(!micro_batches.empty(),
                  Config,
                  "a step was given no micro-batch",
                  "give the same number of micro-batches, at least one, on every rank");
  const auto given = static_cast<int>(micro_batches.size());
  return step(
      round_micros(given),
      [&](int micro) {
        return micro < given ? micro_batches[static_cast<std::size_t>(micro)]
                             : micro_batches.back().samples(0, 0);
      },
      extras);
}

StepResult TrainState::step(int num_micros, const LoadMicro& load, const StepExtras& extras) {
  TESSERA_ASSERT(num_micros == round_micros(num_micros));
  StepResult result;
  result.step = step_ + 1;
  const parallel::StepInput input = step_input(num_micros, load, extras);
  // A skipped step does not advance the schedule.
  const std::int64_t update = step_ - skipped_ + 1;
  gradients_->keep_own(optimizer_->compresses(update));
  gradients_->prepare(input.loss_scale, /*feeds_back=*/true);
  // The step number decides, so that a resumed run does the same.
  parallel::SentResiduals* const residuals = gradients_->residuals();
  if (residuals != nullptr && step_ % options_.reduction.feedback->reset == 0) residuals->forget();
  optim::UpdateScalars scalars = {.lr = options_.schedule->lr(update),
                                  .grad_scale = 1.0 / input.loss_scale,
                                  .step = update,
                                  .beta1 = options_.schedule->beta1(update),
                                  .beta2 = options_.schedule->beta2(update),
                                  .decay_scale = options_.decay_ramp.factor(update)};
  optimizer_->begin_step(
      *gradients_, scalars, /*streams=*/!extras.before_update, extras.before_change);
  parallel::StepOutput out = executor_->train(actions(num_micros), input);

  const double reduce_start = now_s();
  std::optional<trace::Scope> phase(std::in_place, trace::Kind::Phase, "reduction");
  const std::vector<double> sums = finish_gradients(input.loss_scale);
  result.grad_norm = optim::gradient_norm(sums) / input.loss_scale;
  if (scaler_) result.loss_scale = input.loss_scale;
  reduce_losses(std::move(out), num_micros, extras, result);
  result.reduce_s = now_s() - reduce_start;

  const bool finite = std::isfinite(result.loss) && std::isfinite(result.grad_norm);
  // A finite loss with a non-finite gradient is handled by the fp16 loss scale.
  const bool scalable = scaler_ && std::isfinite(result.loss);
  if (!finite && !scalable && options_.on_nonfinite == OnNonfinite::Stop)
    refuse_nonfinite(result, input);
  if (finite && extras.before_update) extras.before_update();
  if (finite && extras.before_change && !optimizer_->has_changed()) extras.before_change();
  const double update_start = now_s();
  phase.emplace(trace::Kind::Phase, "update");
  result.lr = scalars.lr;
  if (finite) {
    scalars.grad_scale = clip(result.grad_norm) / input.loss_scale;
    optimizer_->update(*gradients_, scalars);
  } else {
    optimizer_->skip_update();
    result.skipped = true;
    ++skipped_;
    // A skipped update loses the residuals that its gradients took up, and the rounding errors of
    // gradients that are not finite are meaningless.
    if (residuals != nullptr) residuals->forget();
    result.skip_reason = first_nonfinite(sums);
  }
  result.early = optimizer_->early_counts();
  if (scaler_) follow_scale(result);
  if (experts_ != nullptr)
    result.expert_loads = experts_->finish(/*updates=*/finite, result.metrics);
  phase.reset();
  result.optimizer_s = now_s() - update_start;
  ++step_;

  const parallel::StepTimes times = executor_->take_times();
  result.data_s = times.data;
  result.forward_s = times.forward;
  result.backward_s = times.backward;
  result.receive_s = times.receive;
  const memory::TierUse disk = disk_use();
  result.disk = disk - std::exchange(disk_before_, disk);
  return result;
}

memory::TierUse TrainState::disk_use() const {
  const auto use = [](const std::unique_ptr<memory::Tier>& tier) {
    return tier == nullptr ? memory::TierUse() : tier->use();
  };
  return use(tier_) + use(weight_tier_) + use(activation_tier_);
}

std::vector<double> TrainState::gradient(int num_micros,
                                         const LoadMicro& load,
                                         const std::vector<double>& denominators,
                                         const parallel::TrainedVisitor& visit) {
  TESSERA_ASSERT(num_micros == round_micros(num_micros));
  const StepExtras nothing_more;
  std::vector<double> used;
  parallel::StepInput input = step_input(num_micros, load, nothing_more);
  input.global_denominators = [&](const std::vector<std::vector<double>>& mine) {
    const std::vector<double> counted = sum_denominators(mine, nothing_more);
    return used = denominators.empty() ? counted : denominators;
  };
  gradients_->keep_own(false);
  gradients_->prepare(input.loss_scale, /*feeds_back=*/false);
  executor_->train(actions(num_micros), input);
  gradients_->finish();
  optimizer_->visit_trained(gradients_.get(), visit);
  executor_->take_times();
  return used;
}

/// Sums of squares of the finished gradient, which is still multiplied by the loss scale.
std::vector<double> TrainState::finish_gradients(double scale) {
  gradients_->finish();
  const double limit = options_.clip_value;
  if (limit <= 0) return gradients_->chunk_sums();
  // An infinite value must be detected before it is clipped to the limit.
  std::vector<double> sums = gradients_->chunk_sums();
  if (!std::isfinite(optim::gradient_norm(sums))) return sums;
  gradients_->clamp(limit * scale);
  return gradients_->chunk_sums();
}

std::string TrainState::first_nonfinite(const std::vector<double>& sums) const {
  if (culprit_) return place_of(*culprit_);
  const auto suspect = gradients_->suspect(sums);
  if (!suspect) return "the loss is not finite";
  return fmt::format(
      "the gradient of {} in block {} is finite on every rank and its sum over them is not",
      suspect->tensor,
      suspect->block);
}

/// Adjusts the loss scale. Every rank has the same sums, so all ranks adjust it identically.
void TrainState::follow_scale(StepResult& result) {
  const double scale = *result.loss_scale;
  hopeless_ = result.skipped && scaler_->at_smallest() ? hopeless_ + 1 : 0;
  const bool stops = options_.on_nonfinite == OnNonfinite::Stop;
  try {
    scaler_->update(result.skipped);
  } catch (const Error& error) {
    if (error.kind() != Error::Kind::Numeric) throw;
    if (stops) refuse_overflow(result, error.what());
  }
  if (!result.skipped) return;
  if (stops && hopeless_ >= kHopeless) {
    refuse_overflow(
        result,
        fmt::format("gradients overflowed fp16 {} times in a row at the {} loss scale, {}",
                    hopeless_,
                    scaler_->dynamic() ? "smallest" : "fixed",
                    text::number(scale)));
  }
  result.skip_reason +=
      scale == scaler_->scale()
          ? fmt::format("; loss scale {} stays", text::number(scale))
          : fmt::format(
                "; loss scale {} -> {}", text::number(scale), text::number(scaler_->scale()));
}

double TrainState::clip(double norm) const {
  // Clipping can be disabled during the warm-up, as long as the learning rate itself bounds the
  // step.
  const std::int64_t updates = step_ - skipped_;
  if (options_.clip_after_warmup && updates <= options_.schedule->warmup_steps()) return 1.0;
  return optim::clip_coefficient(norm, options_.clip_norm);
}

/// The loss is the fp64 sum over micro-batches j = m * n + r in ascending order, on every rank; if
/// ranks share the tokens of a micro-batch, over their parts in rank order.
void TrainState::reduce_losses(parallel::StepOutput out,
                               int num_micros,
                               const StepExtras& extras,
                               StepResult& result) {
  if (options_.stages.stages > 1) {
    // A block's loss is on one stage and zero on the others, so that this sum is exact.
    const comm::Group& column = world_.group({mesh::Axis::Pp});
    out.block_losses = world_.all_reduce(
        column, std::move(out.block_losses), comm::Op::Sum, TESSERA_HERE("losses of the stages"));
  }
  const std::vector<double> mine = out.losses(num_micros);
  const std::vector<double> to_max = extras.to_max ? extras.to_max() : std::vector<double>();
  const parallel::GradientReduction::Finding finding = gradients_->finding();
  // One all-gather carries the losses, the caller's numbers and the findings of the gradient check.
  std::vector<double> values = mine;
  values.insert(values.end(), to_max.begin(), to_max.end());
  values.insert(values.end(), finding.begin(), finding.end());
  values.push_back(terms_->has_new(out) ? 1.0 : 0.0);
  // The ranks are those of this world, which may be a part of the job.
  const std::vector<int> group = world_.mesh().group(world_.rank(), kTokens);
  const std::vector<double> all =
      world_.all_gather(world_.everyone(), values, TESSERA_HERE("losses of the micro-batches"));
  const std::size_t width = values.size();
  micro_losses_.clear();
  for (std::size_t m = 0; m < mine.size(); ++m) {
    for (const int r : group)
      micro_losses_.push_back(all[static_cast<std::size_t>(r) * width + m]);
  }
  for (const double loss : micro_losses_)
    result.loss += loss;
  std::vector<double> findings;
  bool new_terms = false;
  result.maxima = to_max;
  for (int r = 0; r < world_.size(); ++r) {
    const std::size_t at = static_cast<std::size_t>(r) * width + mine.size();
    for (std::size_t i = 0; i < to_max.size(); ++i)
      result.maxima[i] = std::max(result.maxima[i], all[at + i]);
    for (std::size_t i = 0; i < finding.size(); ++i)
      findings.push_back(all[at + to_max.size() + i]);
    new_terms |= all[at + to_max.size() + finding.size()] > 0;
  }
  culprit_ = gradients_->culprit(findings);
  result.metrics = terms_->reduce(out, num_micros, result.loss, new_terms);
}

/// Runs the step once more and checks every gradient as it is computed.
std::optional<parallel::GradientReduction::Culprit> TrainState::find_culprit(
    const parallel::StepInput& input) {
  gradients_->start_diagnosis();
  executor_->train(actions(input.num_micros), input);
  return gradients_->diagnosis();
}

void TrainState::refuse_nonfinite(const StepResult& result, const parallel::StepInput& input) {
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
  // Weights that changed already would not lead to the same gradients.
  const bool again = !culprit_ && !options_.streamed_updates;
  if (const auto culprit = again ? find_culprit(input) : culprit_)
    where += (where.empty() ? "" : "; ") + place_of(*culprit);
  throw Error(Error::Kind::Numeric,
              fmt::format("diverged at step {}: {}",
                          result.step,
                          where.empty() ? "the gradient norm overflowed" : where),
              fmt::format("{}lower optimizer.lr, lengthen the warm-up or set gradient_clipping; "
                          "trainer.on_nonfinite \"skip\" goes on "
                          "without the update. The last checkpoint is kept",
                          scaler_ ? "values beyond 65504 are infinite in fp16, and no loss scale "
                                    "helps a forward pass: use bf16; or "
                                  : ""));
}

void TrainState::refuse_overflow(const StepResult& result, const std::string& why) {
  throw Error(
      Error::Kind::Numeric,
      fmt::format("diverged at step {}: {}; {}", result.step, why, result.skip_reason),
      "use bf16 (\"bf16\": {\"enabled\": true}), lower optimizer.lr, or allow a smaller scale "
      "(fp16.min_loss_scale, fp16.min_scale or fp16.loss_scale); trainer.on_nonfinite "
      "\"skip\" goes on. The last checkpoint is kept");
}

nn::Outcome TrainState::infer(const nn::Batch& batch, nn::StepContext& context) {
  optimizer_->wait_weights();
  context.context_parallel = model_->context_parallel();
  if (!context.shares_tokens()) return executor_->infer(batch, context);
  return executor_->infer(nn::own_tokens(batch, *context.context_parallel, model_->objective()),
                          context);
}

void TrainState::visit_trained(const parallel::TrainedVisitor& visit) {
  const bool apart = optimizer_->compresses(step_ - skipped_ + 1);
  optimizer_->visit_trained(apart ? nullptr : gradients_.get(), visit);
}

void TrainState::freeze_sets(const std::vector<bool>& frozen) {
  optimizer_->wait_weights();
  const std::vector<int> changed = model_->freeze_sets(frozen);
  gradients_->follow_model();
  optimizer_->follow_model(changed, step_ - skipped_);
}

std::vector<checkpoint::PieceBytes> TrainState::pieces() {
  optimizer_->wait_weights();
  std::vector<checkpoint::PieceBytes> out = optimizer_->pieces(/*for_save=*/true);
  if (gradients_->residuals() != nullptr) gradients_->residuals()->add_pieces(out);
  return out;
}

void TrainState::release_pieces() {
  optimizer_->release_pieces();
  if (gradients_->residuals() != nullptr) gradients_->residuals()->release_pieces();
}

void TrainState::describe(checkpoint::Meta& meta) const {
  meta.step = step_;
  meta.extra["skipped"] = json::Value::integer(skipped_);
  if (scaler_) meta.extra["loss_scaler"] = scaler_->state();
  if (experts_ == nullptr) return;
  json::Value corrections = experts_->state();
  if (!corrections.is_null()) meta.extra["router_corrections"] = std::move(corrections);
}

void TrainState::load(const checkpoint::Checkpoint& checkpoint) {
  if (options_.trained_alone) initialize_weights();
  optimizer_->wait_weights();
  optimizer_->load(checkpoint);
  if (gradients_->residuals() != nullptr) gradients_->residuals()->load(checkpoint);
  optimizer_->wait_weights();
  const checkpoint::Meta& meta = checkpoint.meta();
  step_ = meta.step;
  if (const json::Value* skipped = meta.extra.find("skipped"))
    skipped_ = skipped->as_integer().value_or(0);
  // A checkpoint of another precision has no loss scaler state; the scale then starts as
  // configured.
  const json::Value* scaler = meta.extra.find("loss_scaler");
  if (scaler_ && scaler != nullptr) scaler_->restore(*scaler);
  if (experts_ != nullptr) experts_->restore(meta.extra.find("router_corrections"));
}

}  // namespace tessera::engine
