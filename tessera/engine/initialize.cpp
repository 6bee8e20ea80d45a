// SPDX-License-Identifier: Apache-2.0
// From a plan to an engine: data, number of steps, first weights.
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/engine/engine.h"
#include "tessera/engine/first_weights.h"
#include "tessera/engine/profile.h"
#include "tessera/engine/teacher.h"
#include "tessera/launch/launch.h"
#include "tessera/parallel/layout.h"
#include "tessera/planner/course.h"
#include "tessera/planner/data_plan.h"
#include "tessera/planner/memory.h"
#include "tessera/planner/model_plan.h"
#include "tessera/planner/place.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/recipe.h"
#include "tessera/planner/with_data.h"

namespace tessera::engine {
std::shared_ptr<const data::Datasets> open_data(const planner::Plan& plan,
                                                const data::TokenizeOptions& how) {
  const tasks::DataRequest request = {
      .options = plan.data().options,
      .tokenizer = *plan.data().tokenizer,
      .vocab_size = plan.model().resolved.vocab_size,
      .sequence_length = plan.data().sequence_length,
      .min_samples = plan.data().options.drop_last ? plan.recipe().global_batch : 1,
      .how = how,
      .model = &plan.model().resolved.description,
      .model_folder = plan.model().options->from.value_or(""),
      .tokenizer_folder = std::filesystem::path(plan.data().tokenizer_options.vocab).parent_path(),
      .seed = static_cast<std::uint64_t>(plan.recipe().seed),
      .micro_batch = plan.layout().micro_batch};
  auto data = std::make_shared<data::Datasets>(plan.data().task->open(request));
  // Opened now, so that errors in it are reported before the training.
  const std::vector<std::string>& test = plan.data().options.test;
  if (!test.empty()) {
    data::OpenedDataset opened = plan.data().task->open_held_out(request, test, "data.test");
    data->test = std::move(opened.dataset);
    data->test_fingerprint = std::move(opened.fingerprint);
  }
  return data;
}

TrainStateOptions train_state_options(const planner::PlanWithData& plan) {
  TrainStateOptions options;
  options.model = with_teacher(plan);
  options.seed = static_cast<std::uint64_t>(plan.recipe().seed);
  options.weights = plan.model().weights;
  options.weight_layout = plan.layout().weight_options(plan.model().rules);
  options.frozen_sets = plan.model().freezing.frozen_sets({});
  options.gather = plan.layout().gather;
  options.reduction = plan.layout().reduction_options();
  options.recompute = plan.layout().recompute;
  options.kept = plan.layout().kept;
  options.offload = plan.layout().offload;
  options.states_on_host = plan.layout().states_on_host;
  options.early_updates = plan.layout().early_updates;
  options.streamed_updates = plan.layout().streamed_updates;
  options.weight_offload = plan.layout().weight_offload;
  options.activation_offload = plan.layout().activation_offload;
  options.host_activations = plan.layout().host_activations;
  options.partition_activations = plan.layout().divides_activations();
  options.disk = plan.layout().disk;
  options.trained_alone =
      !plan.model().base_fingerprint.empty() || static_cast<bool>(plan.model().rules.packed);
  options.zero_stage = plan.layout().zero_stage;
  options.stages = plan.layout().stages;
  options.pipeline = plan.layout().pipeline_schedule();
  options.scatter_gather = plan.layout().scatter_gather;
  options.rule = planner::make_rule(plan.recipe());
  options.schedule = planner::make_schedule(plan.recipe(), plan.course(), *options.rule);
  options.decay_ramp = planner::make_decay_ramp(plan.recipe(), plan.course(), plan.model().groups);
  options.settings = planner::settings_of(plan.recipe(), plan.model(), options.rule->base_lr());
  if (plan.layout().working == DType::F16)
    options.scaling = {plan.recipe().scaling, plan.recipe().scaling_stage};
  options.clip_norm = plan.recipe().clip_norm;
  options.clip_value = plan.recipe().clip_value;
  options.clip_after_warmup = plan.recipe().clip_after_warmup;
  options.on_nonfinite = plan.recipe().on_nonfinite;
  return options;
}

planner::PlanWithData with_first_weights(const planner::PlanWithData& plan,
                                         parallel::FillRange weights) {
  planner::ModelPlan model = plan.model();
  model.weights = std::move(weights);
  return planner::with(plan, std::move(model));
}

std::unique_ptr<Engine> initialize(const planner::Plan& plan,
                                   comm::World& world,
                                   std::shared_ptr<const data::Datasets> data) {
  if (data == nullptr) data = open_data(plan, {});
  const planner::PlanWithData placed = planner::place(planner::with_data(plan, *data));
  return initialize(placed, world, std::move(data));
}

std::unique_ptr<Engine> initialize(const planner::PlanWithData& plan,
                                   comm::World& world,
                                   std::shared_ptr<const data::Datasets> data) {
  const planner::MemoryEstimate need =
      plan.layout().measures_blocks() ? planner::estimate_memory(plan) : planner::MemoryEstimate();
  auto engine = std::make_unique<Engine>(
      with_measured_stages(plan, need, world, *data->train, launch::available_memory()),
      world,
      data);
  engine->initialize_weights();
  engine->make_reference();
  engine->begin_experience();
  return engine;
}

}  // namespace tessera::engine
