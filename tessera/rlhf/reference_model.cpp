// SPDX-License-Identifier: Apache-2.0
#include "tessera/rlhf/reference_model.h"

#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/planner/model_plan.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/values.h"
#include "tessera/rlhf/layouts.h"
#include "tessera/text/tokenizer.h"

namespace tessera::rlhf {

bool is_base_of_policy(const planner::Plan& plan, const tasks::RlOptions& options) {
  return !options.reference && plan.model().adapter != nullptr &&
         plan.model().adapter->trained.empty();
}

std::unique_ptr<ReadModel> open_reference(const planner::Plan& plan,
                                          const tasks::RlOptions& options,
                                          comm::World& world) {
  const ReadLayout layout = layout_of(options.models.reference, "reference", plan);
  std::unique_ptr<engine::OpenModel> out;
  if (options.reference) {
    out = engine::find_model(*options.reference);
    TESSERA_REQUIRE(out->tokenizer->fingerprint() == planner::tokenizer_of(plan)->fingerprint() &&
                        out->shape.max_positions >= planner::sequence_length_of(plan),
                    Config,
                    fmt::format("the reference {} reads other tokens than the policy, or fewer of "
                                "them",
                                *options.reference),
                    "name a model with the policy's tokenizer and as many positions");
    engine::set_objective(*out, plan.model().resolved.objective);
  } else {
    out = engine::initial_model(plan);
  }
  return std::make_unique<ReadModel>(std::move(out), world, layout, kReferenceWorld);
}

}  // namespace tessera::rlhf
