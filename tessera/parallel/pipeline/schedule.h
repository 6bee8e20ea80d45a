// SPDX-License-Identifier: Apache-2.0
// Pipeline schedules: pure functions of (stages, chunks, micro-batches, stage) that return what a
// stage computes in which order. The sends and receives follow from that.
#pragma once

#include <vector>

#include "tessera/base/registry.h"
#include "tessera/parallel/action.h"
#include "tessera/parallel/pipeline/stage_layout.h"

namespace tessera::parallel {

struct PipelineSize {
  int stages = 1;
  int chunks = 1;  ///< chunks of each stage
  int micros = 1;
};

/// Gradients of a chunk's weights must be computed in ascending order of micro-batches, because
/// they are summed in that order.
struct PipelineSchedule {
  /// Returns the Forward, Backward, BackwardInputs and BackwardWeights actions of a stage, in
  /// order; pipeline_actions() adds the messages.
  std::vector<Action> (*computes)(const PipelineSize& size, int stage) = nullptr;
  Placement placement = Placement::Loop;
  int least_chunks = 1, most_chunks = 1;
  /// A step has at least as many micro-batches as there are stages.
  bool full_round = false;
  bool operator==(const PipelineSchedule&) const = default;
};
Registry<PipelineSchedule>& pipeline_schedules();
#define TESSERA_PIPELINE_SCHEDULE(name, variable, ...)     \
  static const bool tessera_pipeline_schedule_##variable = \
      ::tessera::parallel::pipeline_schedules().add(       \
          name, ::tessera::parallel::PipelineSchedule __VA_ARGS__)

/// All actions of a stage in a step: all loads, then what the schedule computes, with a receive
/// before and a send after everything that crosses to another stage.
std::vector<Action> pipeline_actions(const PipelineSchedule& schedule,
                                     const PipelineSize& size,
                                     int stage);
/// The forward passes of evaluation and generation, one micro-batch after the other, without loads.
std::vector<Action> forward_actions(Placement placement, const PipelineSize& size, int stage);

}  // namespace tessera::parallel
