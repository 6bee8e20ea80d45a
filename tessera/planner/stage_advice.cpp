// SPDX-License-Identifier: Apache-2.0
#include "tessera/planner/stage_advice.h"

#include <fmt/format.h>

#include "tessera/base/text.h"
#include "tessera/planner/memory.h"

namespace tessera::planner {
namespace {

/// Options of stage 3 that a lower stage does not have.
bool needs_its_stage(const Plan& plan) {
  const auto& zero = plan.config.zero_optimization;
  const bool groups = plan.zero_stage == 3 && plan.shard_ranks != plan.data_ranks;
  return groups || zero.zero_quantized_weights.value_or(false) ||
         zero.zero_quantized_nontrainable_weights.value_or(false) ||
         zero.zero_quantized_gradients.value_or(false);
}

}  // namespace

void advise_stage(Plan& plan, std::uint64_t available) {
  if (plan.zero_stage < 2 || plan.data_ranks < 2 || needs_its_stage(plan)) return;
  for (int stage = 1; stage < plan.zero_stage; ++stage) {
    Plan lower = plan;
    lower.zero_stage = stage;
    const MemoryEstimate need = estimate_memory(lower);
    if (!need.unknown.empty()) return;
    const double all = static_cast<double>(need.total()) * plan.ranks;
    if (all > kUsableMemory * static_cast<double>(available)) continue;
    plan.notes.push_back(fmt::format(
        "zero_optimization.stage {} fits as well ({} a rank) and communicates less than stage {}",
        stage,
        text::bytes(static_cast<std::uint64_t>(need.total())),
        plan.zero_stage));
    return;
  }
}

}  // namespace tessera::planner
