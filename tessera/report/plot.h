// SPDX-License-Identifier: Apache-2.0
// Plots curves over the steps of a run: the loss, and other quantities.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace tessera::report {

/// A point of a curve, read from metrics.jsonl.
struct CurvePoint {
  std::int64_t step = 0;
  double value = 0.0;
};
struct LossHistory {
  std::vector<CurvePoint> train, eval;
  std::int64_t last_step = 0;  ///< the last trained step, whether or not its loss was finite
};

/// An SVG of training loss (raw and smoothed) and held-out loss over steps, with axes, grid and
/// legend. Text only.
std::string loss_plot(const LossHistory& history);
/// Writes the plot atomically. Does nothing for an empty history.
void write_loss_plot(const std::filesystem::path& path, const LossHistory& history);

struct Curve {
  std::string name;
  std::vector<CurvePoint> points;
};
/// Quantities of one unit, which have one axis.
struct CurvePanel {
  std::string title;
  std::vector<Curve> curves;  ///< more than kMostCurvesOfAPanel are left out
};
inline constexpr std::size_t kMostCurvesOfAPanel = 8;
/// An SVG of panels, two in a row, over one axis of steps. Each has the smoothed curves, and in its
/// legend their last values. Values that are not finite are left out. Text only.
std::string panels_plot(const std::vector<CurvePanel>& panels);

}  // namespace tessera::report
