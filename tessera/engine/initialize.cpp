// SPDX-License-Identifier: Apache-2.0
// From a plan to an engine: data, number of steps, first weights.
#include <cmath>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/engine/engine.h"
#include "tessera/engine/profile.h"
#include "tessera/engine/teacher.h"
#include "tessera/launch/launch.h"
#include "tessera/planner/recipe.h"

namespace tessera::engine {
namespace {

void check_length(const planner::Plan& plan, const data::Dataset& set, const char* what) {
  const std::int64_t length = set.sequence_length().value_or(plan.sequence_length);
  TESSERA_REQUIRE(length == plan.sequence_length,
                  Config,
                  fmt::format("the {} data has samples of {} tokens, the plan of {}",
                              what,
                              length,
                              plan.sequence_length),
                  "set data.sequence_length to the length of the samples");
}

/// Checks that both datasets can be read and that one model can read both.
void check_datasets(const planner::Plan& plan, const data::Datasets& data) {
  data::check_tensors(*data.train);
  if (data.test != nullptr) data::check_tensors(*data.test);
  check_length(plan, *data.train, "training");
  if (data.validation == nullptr) return;
  data::check_tensors(*data.validation);
  check_length(plan, *data.validation, "validation");
  TESSERA_REQUIRE(data.train->tensors() == data.validation->tensors(),
                  Shape,
                  fmt::format("the training data ({}) and the validation data ({}) have samples of "
                              "other tensors",
                              data.train->name(),
                              data.validation->name()),
                  "let tensors() return the same names, element types and shapes for both");
}

}  // namespace

std::shared_ptr<const data::Datasets> open_data(const planner::Plan& plan,
                                                const data::TokenizeOptions& how) {
  const tasks::DataRequest request = {
      .options = plan.config.data,
      .tokenizer = *plan.tokenizer,
      .vocab_size = plan.model.vocab_size,
      .sequence_length = plan.sequence_length,
      .min_samples = plan.config.data.drop_last ? plan.global_batch : 1,
      .how = how,
      .model = &plan.model.description,
      .model_folder = plan.config.model->from.value_or(""),
      .tokenizer_folder = std::filesystem::path(plan.config.tokenizer.vocab).parent_path(),
      .seed = static_cast<std::uint64_t>(plan.config.trainer.seed),
      .micro_batch = plan.micro_batch};
  auto data = std::make_shared<data::Datasets>(plan.task->open(request));
  // Opened now, so that errors in it are reported before the training.
  const std::vector<std::string>& test = plan.config.data.test;
  if (!test.empty()) {
    data::OpenedDataset opened = plan.task->open_held_out(request, test, "data.test");
    data->test = std::move(opened.dataset);
    data->test_fingerprint = std::move(opened.fingerprint);
  }
  return data;
}

void finish_plan(planner::Plan& plan, const data::Datasets& data, const Position& from) {
  TESSERA_REQUIRE(data.train != nullptr && data.train->size() > 0,
                  Data,
                  "there is no sample to train on",
                  "give Datasets::train a dataset of at least one");
  plan.sample.clear();
  for (data::TensorSpec& spec : data.train->tensors()) {
    if (!spec.optional) plan.sample.push_back(std::move(spec));
  }
  if (auto made = data.train->made_by_model()) plan.sample.push_back(*std::move(made));
  // Samples that are not sequences count as one token each.
  if (!data.train->sequence_length()) plan.sequence_length = 1;
  check_datasets(plan, data);
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
  TESSERA_REQUIRE(!plan.config.eval.when().any() || data.validation != nullptr,
                  Config,
                  fmt::format("eval.every is {}, but there is no validation data",
                              plan.config.eval.every.dump()),
                  "set data.validation or data.validation_fraction, or eval.every to 0");
  // A schedule that depends on the number of steps can be checked only now.
  planner::make_schedule(plan, *planner::make_rule(plan));
}

TrainStateOptions train_state_options(const planner::Plan& plan) {
  TrainStateOptions options;
  options.model = with_teacher(plan);
  options.seed = static_cast<std::uint64_t>(plan.config.trainer.seed);
  options.weights = plan.weights;
  options.weight_layout = plan.weight_options();
  options.frozen_sets = plan.freezing.frozen_sets({});
  options.gather = plan.gather;
  options.reduction = plan.reduction_options();
  options.recompute = plan.recompute;
  options.kept = plan.kept;
  options.trained_alone = !plan.base_fingerprint.empty() || static_cast<bool>(plan.rules.packed);
  options.zero_stage = plan.zero_stage;
  options.stages = plan.stages;
  options.pipeline = plan.schedule;
  options.scatter_gather = plan.scatter_gather;
  options.rule = planner::make_rule(plan);
  options.schedule = planner::make_schedule(plan, *options.rule);
  options.decay_ramp = planner::make_decay_ramp(plan);
  options.settings = planner::settings_of(plan, options.rule->base_lr());
  if (plan.working == DType::F16) options.scaling = {plan.scaling, plan.scaling_stage};
  options.clip_norm = plan.config.gradient_clipping;
  options.clip_value = plan.config.gradient_clip_value;
  options.clip_after_warmup = plan.config.trainer.clip_after_warmup;
  options.on_nonfinite = plan.config.trainer.on_nonfinite;
  return options;
}

std::unique_ptr<Engine> initialize(const planner::Plan& plan,
                                   comm::World& world,
                                   std::shared_ptr<const data::Datasets> data) {
  planner::Plan mine = plan;
  if (data == nullptr) data = open_data(mine, {});
  if (mine.max_steps == 0) finish_plan(mine, *data);
  settle_experience(mine);
  place_measured_blocks(mine, world, *data->train, launch::available_memory());
  auto engine = std::make_unique<Engine>(std::move(mine), world, std::move(data));
  engine->initialize_weights();
  engine->make_reference();
  engine->begin_experience();
  return engine;
}

}  // namespace tessera::engine
