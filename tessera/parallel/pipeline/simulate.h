// SPDX-License-Identifier: Apache-2.0
// Proves a pipeline's lists of actions and prices them, without running anything.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tessera/parallel/pipeline/schedule.h"

namespace tessera::parallel {

/// Lists of all stages, in order.
using StageActions = std::vector<std::vector<Action>>;
StageActions all_actions(const PipelineSchedule& schedule, const PipelineSize& size);

/// What lists are for: a training step, or the forward passes of forward_actions().
enum class Passes : std::uint8_t { Training, Forward };

/// What is wrong with the lists, with stage and action; nothing if every micro-batch passes every
/// chunk once, forward before backward, gradients of weights in ascending order, every message is
/// sent and received in the same order, and all stages come to their end though a receive waits and
/// a send waits where `room` messages of its kind to that stage have not been received yet. Lists
/// of forward passes hold nothing else: no loads, no gradients.
std::optional<std::string> find_fault(const StageActions& stages,
                                      const PipelineSize& size,
                                      Placement placement,
                                      int room,
                                      Passes passes = Passes::Training);

/// Seconds, or any unit, of one chunk and micro-batch; messages take none.
struct PassTimes {
  double forward = 1, inputs = 1, weights = 1;
};
struct Simulation {
  struct Stage {
    double begin = 0, end = 0;  ///< of what it computes
    double busy = 0;
    int most_kept = 0;  ///< chunks' micro-batches between forward and gradients, at most
  };
  std::vector<Stage> stages;
  /// The longest time between a stage's first and last pass, as more than it is busy: waiting as a
  /// share of the ideal time.
  [[nodiscard]] double bubble() const;
};
/// The lists must be without fault. `times`: one for all stages, or one for each.
Simulation simulate(const StageActions& stages,
                    const PipelineSize& size,
                    Placement placement,
                    std::span<const PassTimes> times);
Simulation simulate(const StageActions& stages,
                    const PipelineSize& size,
                    Placement placement,
                    const PassTimes& times);

}  // namespace tessera::parallel
