// SPDX-License-Identifier: Apache-2.0
#include "tessera/planner/plan.h"

#include "tessera/planner/draft.h"
#include "tessera/planner/memory.h"
#include "tessera/planner/plan_parts.h"

namespace tessera::planner {
namespace {

template <class Part>
std::shared_ptr<const Part> shared(Part part) {
  return std::make_shared<const Part>(std::move(part));
}

}  // namespace

Plan::Plan(PlanParts parts)
    : layout_(shared(std::move(parts.layout))),
      model_(shared(std::move(parts.model))),
      data_(shared(std::move(parts.data))),
      recipe_(shared(std::move(parts.recipe))),
      run_(shared(std::move(parts.run))),
      resolved_(shared(std::move(parts.resolved))),
      notes_(shared(std::move(parts.notes))),
      inputs_(shared(std::move(parts.inputs))),
      needs_(shared(Needs())) {}

mesh::Mesh Plan::mesh() const {
  return layout_->mesh();
}
int Plan::ranks() const {
  return layout_->ranks();
}

void Plan::set(parallel::Layout layout) {
  layout_ = shared(std::move(layout));
}
void Plan::set(ModelPlan model) {
  model_ = shared(std::move(model));
}
void Plan::set(DataPlan data) {
  data_ = shared(std::move(data));
}
void Plan::set(Recipe recipe) {
  recipe_ = shared(std::move(recipe));
}
void Plan::set(RunPlan run) {
  run_ = shared(std::move(run));
}
void Plan::set(json::Value resolved) {
  resolved_ = shared(std::move(resolved));
}
void Plan::set(std::vector<Input> inputs) {
  inputs_ = shared(std::move(inputs));
}
void Plan::set(Needs needs) {
  needs_ = shared(needs);
}
void Plan::add(std::vector<std::string> notes) {
  notes.insert(notes.begin(), notes_->begin(), notes_->end());
  notes_ = shared(std::move(notes));
}

PlanWithData::PlanWithData(Plan plan, Course course)
    : Plan(std::move(plan)), course_(shared(std::move(course))) {}
void PlanWithData::set(Course course) {
  course_ = shared(std::move(course));
}

PlacedPlan::PlacedPlan(PlanWithData plan, MemoryEstimate memory)
    : PlanWithData(std::move(plan)), memory_(shared(std::move(memory))) {}

PlanParts parts_of(const Draft& draft) {
  const TrainConfig& config = draft.config;
  PlanParts out{.layout = draft.layout,
                .model = draft.model,
                .data = draft.data,
                .recipe = draft.recipe,
                .run = draft.run,
                .resolved = {},
                .notes = draft.notes,
                .inputs = draft.inputs};
  out.model.distill = config.distill;
  out.data.task_options = config.task;
  out.data.tokenizer_options = config.tokenizer;
  out.data.options = config.data;
  Recipe& recipe = out.recipe;
  recipe.optimizer = config.optimizer;
  recipe.scheduler = config.scheduler;
  recipe.written_ramp = config.rampup_batch_size;
  recipe.clip_norm = config.gradient_clipping;
  recipe.clip_value = config.gradient_clip_value;
  recipe.clip_after_warmup = config.trainer.clip_after_warmup;
  recipe.on_nonfinite = config.trainer.on_nonfinite;
  recipe.ema = config.trainer.ema;
  recipe.seed = config.trainer.seed;
  recipe.max_steps = config.trainer.max_steps;
  recipe.epochs = config.trainer.epochs;
  out.run.options = config.run;
  out.run.checkpoint = config.checkpoint;
  out.run.eval = config.eval;
  out.run.elasticity = config.elasticity;
  out.run.printing = config.printing;
  out.run.sections = config.sections;
  return out;
}

}  // namespace tessera::planner
