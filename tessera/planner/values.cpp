// SPDX-License-Identifier: Apache-2.0
#include "tessera/planner/values.h"

#include "tessera/parallel/layout.h"
#include "tessera/planner/data_plan.h"
#include "tessera/planner/model_plan.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/recipe.h"
#include "tessera/planner/run_plan.h"

namespace tessera::planner {

const std::shared_ptr<const tasks::Task>& task_of(const Plan& plan) {
  return plan.data().task;
}
const std::shared_ptr<const text::Tokenizer>& tokenizer_of(const Plan& plan) {
  return plan.data().tokenizer;
}
const data::DataOptions& data_options_of(const Plan& plan) {
  return plan.data().options;
}
std::int64_t sequence_length_of(const Plan& plan) {
  return plan.data().sequence_length;
}
const models::Resolved& model_of(const Plan& plan) {
  return plan.model().resolved;
}
std::int64_t global_batch_of(const Plan& plan) {
  return plan.recipe().global_batch;
}
std::int64_t seed_of(const Plan& plan) {
  return plan.recipe().seed;
}
const tasks::EvalOptions& eval_options_of(const Plan& plan) {
  return plan.run().eval;
}
std::int64_t micro_batch_of(const Plan& plan) {
  return plan.layout().micro_batch;
}
std::int64_t accumulation_of(const Plan& plan) {
  return plan.layout().accumulation;
}
int threads_of(const Plan& plan) {
  return plan.layout().threads;
}
int data_ranks_of(const Plan& plan) {
  return plan.layout().data_ranks;
}
int zero_stage_of(const Plan& plan) {
  return plan.layout().zero_stage;
}
int stages_of(const Plan& plan) {
  return plan.layout().stages.stages;
}
const std::string& schedule_of(const Plan& plan) {
  return plan.layout().schedule;
}
DType working_of(const Plan& plan) {
  return plan.layout().working;
}
bool runs_together(const Plan& plan) {
  return plan.layout().runs_together();
}
int context_ranks_of(const Plan& plan) {
  return plan.layout().context;
}
const std::string& run_device_of(const Plan& plan) {
  return plan.run().options.device;
}

}  // namespace tessera::planner
