// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/teacher.h"

#include <memory>
#include <utility>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/comm/world.h"
#include "tessera/engine/open_model.h"
#include "tessera/models/objectives/distilled.h"
#include "tessera/nn/step_context.h"
#include "tessera/planner/model_plan.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/values.h"
#include "tessera/text/tokenizer.h"

namespace tessera::engine {
namespace {

std::shared_ptr<OpenModel> open_teacher(const planner::Plan& plan) {
  const std::string& path = *plan.model().distill.teacher;
  std::shared_ptr<OpenModel> out = find_model(path);
  TESSERA_REQUIRE(out->tokenizer->fingerprint() == planner::tokenizer_of(plan)->fingerprint(),
                  Config,
                  fmt::format("the teacher {} has another tokenizer than the model", path),
                  "choose a teacher with the model's tokenizer");
  set_objective(*out, plan.model().resolved.objective);
  // A world of its own, so that its collectives do not mix with those of the training.
  out->alone = comm::solo_world();
  load_model(
      *out, *out->alone, planner::working_of(plan) == DType::F32 ? ReadAs::F32 : ReadAs::BF16);
  return out;
}

}  // namespace

nn::Model with_teacher(const planner::Plan& plan) {
  nn::Model out = plan.model().resolved.model;
  const models::DistillOptions& options = plan.model().distill;
  if (!options.enabled()) return out;
  const auto teacher = std::make_shared<std::shared_ptr<OpenModel>>();
  const auto logits = [plan, teacher](const nn::Batch& batch) {
    if (*teacher == nullptr) *teacher = open_teacher(plan);
    nn::StepContext context(nn::Mode::Eval, /*seed=*/0);
    return (*teacher)->executor->infer(batch, context).outputs.at("logits");
  };
  out.blocks.back() =
      models::distilled(std::move(out.blocks.back()),
                        logits,
                        {.temperature = options.temperature,
                         .alpha = options.alpha,
                         .label_weight = options.label_weight},
                        models::distill_form(plan.model().resolved.objective).value());
  return out;
}

}  // namespace tessera::engine
