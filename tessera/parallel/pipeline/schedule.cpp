// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/pipeline/schedule.h"

namespace tessera::parallel {
namespace {

/// Adds the sends and receives around the computations.
std::vector<Action> with_messages(const std::vector<Action>& computes,
                                  const StageLayout& layout,
                                  int stage) {
  std::vector<Action> out;
  const auto message = [&](ActionKind kind, const Action& of, int part) {
    if (part < 0 || part >= layout.parts() || layout.stage_of_part(part) == stage) return;
    out.push_back({kind, of.chunk, of.micro, layout.stage_of_part(part)});
  };
  for (const Action& action : computes) {
    const int part = layout.part(stage, action.chunk);
    const bool forward = action.kind == ActionKind::Forward;
    const bool backward =
        action.kind == ActionKind::Backward || action.kind == ActionKind::BackwardInputs;
    if (forward) message(ActionKind::ReceiveFlow, action, part - 1);
    if (backward) message(ActionKind::ReceiveGradient, action, part + 1);
    out.push_back(action);
    if (forward) message(ActionKind::SendFlow, action, part + 1);
    if (backward) message(ActionKind::SendGradient, action, part - 1);
  }
  return out;
}

}  // namespace

Registry<PipelineSchedule>& pipeline_schedules() {
  static Registry<PipelineSchedule> registry("pipeline schedule");
  return registry;
}

std::vector<Action> pipeline_actions(const PipelineSchedule& schedule,
                                     const PipelineSize& size,
                                     int stage) {
  std::vector<Action> actions;
  for (int m = 0; m < size.micros; ++m)
    actions.push_back({.kind = ActionKind::Load, .micro = m});
  const StageLayout layout{size.stages, size.chunks, schedule.placement, {}};
  const std::vector<Action> rest = with_messages(schedule.computes(size, stage), layout, stage);
  actions.insert(actions.end(), rest.begin(), rest.end());
  return actions;
}

std::vector<Action> forward_actions(Placement placement, const PipelineSize& size, int stage) {
  std::vector<Action> computes;
  for (int m = 0; m < size.micros; ++m) {
    for (int c = 0; c < size.chunks; ++c)
      computes.push_back({.kind = ActionKind::Forward, .chunk = c, .micro = m});
  }
  return with_messages(computes, {size.stages, size.chunks, placement, {}}, stage);
}

}  // namespace tessera::parallel
