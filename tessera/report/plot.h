// SPDX-License-Identifier: Apache-2.0
// Plots the loss curve.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace tessera::report {

/// A point of the loss curve, read from metrics.jsonl.
struct LossPoint {
  std::int64_t step = 0;
  double value = 0.0;
};
struct LossHistory {
  std::vector<LossPoint> train, eval;
  std::int64_t last_step = 0;  ///< the last trained step, whether or not its loss was finite
};

/// An SVG of training loss (raw and smoothed) and held-out loss over steps, with axes, grid and
/// legend. Text only.
std::string loss_plot(const LossHistory& history);
/// Writes the plot atomically. Does nothing for an empty history.
void write_loss_plot(const std::filesystem::path& path, const LossHistory& history);

}  // namespace tessera::report
