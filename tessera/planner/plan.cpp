// SPDX-License-Identifier: Apache-2.0
#include "tessera/planner/plan.h"

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

}  // namespace tessera::planner
