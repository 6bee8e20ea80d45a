// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/rl/layouts.h"

#include <algorithm>
#include <string>

#include <fmt/format.h>

#include "tessera/nn/block.h"
#include "tessera/planner/zero_stage.h"

namespace tessera::engine::rl {

ReadLayout layout_of(const tasks::RlModel& model, const planner::Plan& policy) {
  const bool bf16 = model.dtype ? *model.dtype == "bf16" : policy.working == DType::BF16;
  return {.as = bf16 ? ReadAs::BF16 : ReadAs::F32,
          .copies = model.zero_stage == 0 ? Copies::Each : Copies::One};
}

std::string text_of(const ReadLayout& layout, const planner::Plan& policy) {
  if (policy.data_ranks == 1) return std::string(name(layout.as));
  return fmt::format("{}, {}",
                     name(layout.as),
                     layout.copies == Copies::One ? "sharded" : "whole on each data-parallel rank");
}

std::int64_t bytes_of(const models::Resolved& model,
                      const ReadLayout& layout,
                      const planner::Plan& policy) {
  std::int64_t elements = 0, largest = 0;
  for (const auto& param : nn::parameters_of(model.model)) {
    elements += param->numel();
    largest = std::max(largest, param->numel());
  }
  const std::int64_t width = layout.as == ReadAs::BF16 ? 2 : 4,
                     sharers = policy.ranks / policy.data_ranks;
  if (layout.copies == Copies::Each || policy.data_ranks == 1) return elements / sharers * width;
  return (elements / policy.ranks + 2 * largest / sharers) * width;
}

void apply_layout(const tasks::RlModel& model, planner::Plan& plan) {
  if (model.zero_stage) planner::set_zero_stage(plan, static_cast<int>(*model.zero_stage));
  const bool other = model.dtype || plan.working == DType::F16;
  if (!other) return;
  const DType working = model.dtype == "bf16" ? DType::BF16 : DType::F32;
  if (working == plan.working) return;
  plan.working = plan.weight_layout.working = working;
  plan.kept = {};  // masters and moments in fp32
  plan.reduction.accumulate = DType::F32;
}

}  // namespace tessera::engine::rl
