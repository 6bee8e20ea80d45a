// SPDX-License-Identifier: Apache-2.0
#include "tessera/planner/stage_advice.h"

#include <fmt/format.h>

#include "tessera/base/text.h"
#include "tessera/parallel/layout.h"
#include "tessera/planner/memory.h"

namespace tessera::planner {
namespace {

/// Options of stage 3 that a lower stage does not have.
bool needs_its_stage(const parallel::Layout& layout) {
  const bool groups = layout.zero_stage == 3 && layout.shard_ranks != layout.data_ranks;
  return groups || layout.trained_gather == parallel::GatherForm::Int8 ||
         layout.frozen_gather == parallel::GatherForm::Int8 || layout.sent == DType::U8;
}

}  // namespace

std::optional<std::string> stage_advice(const Plan& plan, std::uint64_t available) {
  const parallel::Layout& layout = plan.layout();
  if (layout.zero_stage < 2 || layout.data_ranks < 2 || needs_its_stage(layout))
    return std::nullopt;
  for (int stage = 1; stage < layout.zero_stage; ++stage) {
    parallel::Layout lower = layout;
    lower.zero_stage = stage;
    const MemoryEstimate need = estimate_memory(with(plan, std::move(lower)));
    if (!need.unknown.empty()) return std::nullopt;
    if (!fits(need, plan.ranks(), available)) continue;
    return fmt::format(
        "zero_optimization.stage {} fits as well ({} a rank) and communicates less than stage {}",
        stage,
        text::bytes(static_cast<std::uint64_t>(need.total())),
        layout.zero_stage);
  }
  return std::nullopt;
}

}  // namespace tessera::planner
