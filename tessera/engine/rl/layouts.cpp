// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/rl/layouts.h"

#include <algorithm>
#include <string>

#include <fmt/format.h>

#include "tessera/nn/block.h"
#include "tessera/planner/precision.h"
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

namespace {

struct Elements {
  std::int64_t all = 0, largest = 0;  ///< the largest of one parameter
};

Elements elements_of(const nn::ParamInfos& params) {
  Elements out;
  for (const auto& param : params) {
    out.all += param->numel();
    out.largest = std::max(out.largest, param->numel());
  }
  return out;
}

}  // namespace

std::int64_t bytes_of(const models::Resolved& model,
                      const ReadLayout& layout,
                      const planner::Plan& policy) {
  const Elements elements = elements_of(nn::parameters_of(model.model));
  const std::int64_t width = layout.as == ReadAs::BF16 ? 2 : 4,
                     sharers = policy.ranks / policy.data_ranks;
  if (layout.copies == Copies::Each || policy.data_ranks == 1)
    return elements.all / sharers * width;
  return (elements.all / policy.ranks + 2 * elements.largest / sharers) * width;
}

std::int64_t bytes_beside_trunk(const models::Resolved& model, const planner::Plan& lender) {
  const auto width = static_cast<std::int64_t>(size_of(lender.working));
  const std::int64_t sharers = lender.ranks / lender.data_ranks;
  // Sharded weights have memory of their own while they are gathered.
  const bool gathers = lender.zero_stage == 3 && lender.data_ranks > 1;
  const std::int64_t gathered =
      gathers ? 2 * elements_of(nn::parameters_of(model.model)).largest / sharers : 0;
  return (elements_of(nn::declared_by(model.model.blocks.back())).all / sharers + gathered) * width;
}

std::string text_of_trained(const planner::Plan& plan) {
  std::string out(planner::precision_text(plan));
  if (plan.data_ranks > 1) out += fmt::format(", ZeRO stage {}", plan.zero_stage);
  const models::AdapterOptions& adapter = plan.config.adapter;
  if (plan.adapter != nullptr) out += fmt::format(", {} of rank {}", adapter.type, adapter.r);
  return out;
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
