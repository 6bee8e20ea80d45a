// SPDX-License-Identifier: Apache-2.0
// From a plan to an engine: data, number of steps, first weights.
#include <cmath>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/engine/engine.h"
#include "tessera/engine/profile.h"
#include "tessera/launch/launch.h"
#include "tessera/planner/recipe.h"

namespace tessera::engine {

std::shared_ptr<const data::Datasets> open_data(const planner::Plan& plan,
                                                const data::TokenizeOptions& how) {
  const std::int64_t needed = plan.config.data.drop_last ? plan.global_batch : 1;
  return std::make_shared<const data::Datasets>(data::open_datasets(
      plan.config.data, *plan.tokenizer, plan.model.vocab_size, plan.sequence_length, needed, how));
}

void finish_plan(planner::Plan& plan, const data::Datasets& data, const Position& from) {
  TESSERA_REQUIRE(data.train != nullptr && data.train->size() > 0,
                  Data,
                  "there is no sample to train on",
                  "give Datasets::train a dataset of at least one");
  for (const data::Dataset* const set : {data.train.get(), data.validation.get()}) {
    TESSERA_REQUIRE(set == nullptr || set->length() == plan.sequence_length,
                    Config,
                    fmt::format("the {} data has samples of {} tokens, the plan of {}",
                                set == data.train.get() ? "training" : "validation",
                                set->length(),
                                plan.sequence_length),
                    "set data.sequence_length to the length of the samples");
  }
  const planner::TrainerOptions& trainer = plan.config.trainer;
  const data::BatchPlan batches(data.train->size(),
                                plan.global_batch,
                                plan.config.data.drop_last,
                                planner::batch_sizes(plan));
  const double epochs = trainer.epochs.value_or(1.0);
  // Earlier batches of another size have consumed another number of samples.
  const double by_epochs =
      trainer.max_steps && !trainer.epochs
          ? HUGE_VAL
          : static_cast<double>(from.step) + batches.steps_in(epochs, from.samples);
  const double by_steps = trainer.max_steps ? static_cast<double>(*trainer.max_steps) : HUGE_VAL;
  plan.max_steps = static_cast<std::int64_t>(std::min(by_epochs, by_steps));
  TESSERA_REQUIRE(plan.max_steps > 0,
                  Config,
                  "there is nothing to train: the number of steps is 0",
                  "raise trainer.max_steps or trainer.epochs");
  TESSERA_REQUIRE(
      plan.config.eval.every == 0 || data.validation != nullptr,
      Config,
      fmt::format("eval.every is {}, but there is no validation data", plan.config.eval.every),
      "set data.validation or data.validation_fraction, or eval.every to 0");
  // A schedule that depends on the number of steps can be checked only now.
  planner::make_schedule(plan, *planner::make_rule(plan));
}

TrainStateOptions train_state_options(const planner::Plan& plan) {
  TrainStateOptions options;
  options.model = plan.model.model;
  options.seed = static_cast<std::uint64_t>(plan.config.trainer.seed);
  options.weights = plan.weights;
  options.weight_layout = plan.weight_layout;
  options.gather = plan.gather;
  options.fold = plan.fold;
  options.recompute = plan.recompute;
  options.kept = plan.kept;
  options.zero_stage = plan.zero_stage;
  options.stages = plan.stages;
  options.pipeline = plan.schedule;
  options.scatter_gather = plan.config.parallel.pipeline.scatter_gather;
  options.rule = planner::make_rule(plan);
  options.schedule = planner::make_schedule(plan, *options.rule);
  options.decay_ramp = planner::make_decay_ramp(plan);
  options.settings = planner::settings_of(plan, options.rule->base_lr());
  if (plan.working == DType::F16) options.scaling = {plan.scaling, plan.scaling_stage};
  options.clip_norm = plan.config.gradient_clipping;
  options.clip_value = plan.config.gradient_clip_value;
  options.clip_after_warmup = plan.config.trainer.clip_after_warmup;
  options.on_nonfinite =
      plan.config.trainer.on_nonfinite == "skip" ? OnNonfinite::Skip : OnNonfinite::Stop;
  return options;
}

std::unique_ptr<Engine> initialize(const planner::Plan& plan,
                                   comm::World& world,
                                   std::shared_ptr<const data::Datasets> data) {
  planner::Plan mine = plan;
  if (data == nullptr) data = open_data(mine, {});
  if (mine.max_steps == 0) finish_plan(mine, *data);
  place_measured_blocks(mine, world, *data->train, launch::available_memory());
  auto engine = std::make_unique<Engine>(std::move(mine), world, std::move(data));
  engine->initialize_weights();
  return engine;
}

}  // namespace tessera::engine
