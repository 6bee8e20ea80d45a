// SPDX-License-Identifier: Apache-2.0
// The plots of a run folder.
#pragma once

#include <filesystem>
#include <vector>

#include "tessera/report/plot.h"

namespace tessera::planner {
class Plan;
}

namespace tessera::engine {

/// Returns what the terms of reinforcement learning in metrics.jsonl show over the steps: reward
/// and its parts, divergence, entropy, length, shares of completions and tokens, and a critic's
/// explained variance. Quantities that no line has are left out.
std::vector<report::CurvePanel> rollout_panels(const std::filesystem::path& metrics);

/// Writes loss.svg, and for a plan of the task rl rollouts.svg, from the metrics.jsonl of a run.
/// Throws Error{Io} if a file cannot be written.
void write_plots(const planner::Plan& plan, const std::filesystem::path& run_dir);

}  // namespace tessera::engine
