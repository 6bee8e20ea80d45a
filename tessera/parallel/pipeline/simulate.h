// SPDX-License-Identifier: Apache-2.0
// Checks a pipeline's lists of actions and simulates their time, without running anything.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tessera/parallel/pipeline/schedule.h"

namespace tessera::parallel {

/// The lists of all stages, in order.
using StageActions = std::vector<std::vector<Action>>;
StageActions all_actions(const PipelineSchedule& schedule, const PipelineSize& size);

/// The purpose of the lists: a training step, or the forward passes of forward_actions().
enum class Passes : std::uint8_t { Training, Forward };

/// Describes a fault of the lists, with stage and action. Returns nothing if every micro-batch
/// passes every chunk once, forward before backward; gradients of weights are in ascending order;
/// every message is sent and received in the same order; and all stages finish, given that a
/// receive waits for its message, and a send waits while `room` messages of its kind to that stage
/// are unreceived. Lists of forward passes must contain nothing else: no loads, no gradients.
std::optional<std::string> find_fault(const StageActions& stages,
                                      const PipelineSize& size,
                                      Placement placement,
                                      int room,
                                      Passes passes = Passes::Training);

/// Seconds, or any other unit, for one chunk and micro-batch.
struct PassTimes {
  double forward = 1, inputs = 1, weights = 1;
};
/// The prices of a step in one unit. An empty function means PassTimes(), or messages that take no
/// time.
struct StepPrices {
  std::function<PassTimes(int stage, int chunk)> passes;
  /// The time of a message from one stage to another: of the flow with which `part` begins, or of
  /// its gradient.
  std::function<double(int from, int to, int part, bool gradient)> message;
  double update = 0;  ///< after the last pass of all stages
};
struct Simulation {
  struct Stage {
    double begin = 0, end = 0;  ///< begin and end of its computation
    double busy = 0;
    /// Highest number of micro-batches, over all chunks, that are between forward and backward.
    int most_kept = 0;
  };
  std::vector<Stage> stages;
  double end = 0;  ///< end of the step: of the last stage's computation, and the update
  /// The longest time between a stage's first and last pass, minus the time it is busy, as a share
  /// of the busy time.
  [[nodiscard]] double bubble() const;
};
/// The lists must have no fault. A message occupies its link, from one stage to another, from its
/// send or the end of the previous message, and a receive waits for its end; the sender goes on at
/// once.
Simulation simulate(const StageActions& stages,
                    const PipelineSize& size,
                    Placement placement,
                    const StepPrices& times);
/// `times`: one entry for all stages, or one per stage; messages take no time.
Simulation simulate(const StageActions& stages,
                    const PipelineSize& size,
                    Placement placement,
                    std::span<const PassTimes> times);
Simulation simulate(const StageActions& stages,
                    const PipelineSize& size,
                    Placement placement,
                    const PassTimes& times);

}  // namespace tessera::parallel
