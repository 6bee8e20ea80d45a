// SPDX-License-Identifier: Apache-2.0
// The result of a plan on a machine: memory, time, traffic and price, as lines and as JSON.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tessera/config/json.h"
#include "tessera/planner/memory.h"
#include "tessera/planner/offload_ladder.h"
#include "tessera/planner/plan.h"
#include "tessera/predict/described_machine.h"
#include "tessera/predict/step_time.h"

namespace tessera::tune {

struct Outlook {
  predict::StepTime time;
  planner::MemoryEstimate memory;
  bool fits = false;
  /// Of the tokens that are asked for, or of trainer.max_steps; nothing if neither is known.
  std::optional<predict::Bill> bill;
  std::vector<planner::OffloadRung> ladder;  ///< the smallest offload with which it fits, likewise
  std::vector<std::string> smaller;          ///< changes with which it fits, if it does not
};

/// Throws the errors of predict_step(). Starts nothing.
Outlook outlook_of(const planner::Plan& plan,
                   const predict::DescribedMachine& machine,
                   std::optional<double> tokens);
/// About ten lines: machine, layout, memory, step, time, traffic, training.
std::vector<std::string> outlook_lines(const Outlook& outlook,
                                       const planner::Plan& plan,
                                       const predict::DescribedMachine& machine);
/// The time of each part, and the best changes of one key, each with its gain and its
/// memory. `source`: the configuration of the plan.
std::vector<std::string> why_lines(const Outlook& outlook,
                                   const json::Value& source,
                                   const planner::Plan& plan,
                                   const predict::DescribedMachine& machine);
json::Value outlook_json(const Outlook& outlook,
                         const planner::Plan& plan,
                         const predict::DescribedMachine& machine);

/// The parts of a predicted step with their names, in the order of a step.
std::vector<std::pair<std::string, double>> parts_of(const predict::StepTime& time);

}  // namespace tessera::tune
