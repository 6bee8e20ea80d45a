// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/rl/reference_model.h"

#include <utility>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/engine/rl/layouts.h"
#include "tessera/tensor/init.h"

namespace tessera::engine::rl {

bool is_base_of_policy(const planner::Plan& plan, const tasks::RlOptions& options) {
  return !options.reference && plan.adapter != nullptr && plan.adapter->trained.empty();
}

std::unique_ptr<ReadModel> open_reference(const planner::Plan& plan,
                                          const tasks::RlOptions& options,
                                          comm::World& world) {
  const ReadLayout layout = layout_of(options.models.reference, plan);
  std::unique_ptr<OpenModel> out;
  if (options.reference) {
    out = find_model(*options.reference);
    TESSERA_REQUIRE(out->tokenizer->fingerprint() == plan.tokenizer->fingerprint() &&
                        out->shape.max_positions >= plan.sequence_length,
                    Config,
                    fmt::format("the reference {} reads other tokens than the policy, or fewer of "
                                "them",
                                *options.reference),
                    "name a model with the policy's tokenizer and as many positions");
    set_objective(*out, plan.model.objective);
  } else {
    out = std::make_unique<OpenModel>();
    out->shape = plan.base ? *plan.base : plan.model;
    out->tokenizer = plan.tokenizer;
    out->weights = plan.weights;
    if (!out->weights) {
      out->weights = [seed = static_cast<std::uint64_t>(plan.config.trainer.seed)](
                         const ParamInfo& info, std::int64_t begin, std::int64_t end, float* to) {
        initialize_range(info, seed, begin, at::from_blob(to, {end - begin}, at::kFloat));
      };
    }
  }
  return std::make_unique<ReadModel>(std::move(out), world, layout, kReferenceWorld);
}

}  // namespace tessera::engine::rl
