// SPDX-License-Identifier: Apache-2.0
// Plots of a classifier's results.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/tasks/metrics.h"

namespace tessera::report {

/// An SVG of a confusion matrix: rows are true classes, columns predicted ones; the darkness of a
/// cell is its share of the row. `names`: names of the classes. `confusion`: [true, predicted].
std::string confusion_plot(const std::vector<std::string>& names,
                           const std::vector<std::int64_t>& confusion);
/// The same of labels each of which applies or does not: a row for each label with the numbers of
/// samples where it was rightly and wrongly absent, missed and rightly found. `confusion`: [true,
/// predicted] of each label.
std::string flags_plot(const std::vector<std::string>& names,
                       const std::vector<std::vector<std::int64_t>>& confusion);

/// A curve of a class against all others.
struct RocCurve {
  std::string name;  ///< not shown of a single curve
  std::vector<tasks::RocPoint> points;
  double area = 0;
};
/// An SVG of ROC curves with their areas. At most `kMostCurves` are drawn, those with the least
/// area.
std::string roc_plot(std::vector<RocCurve> curves);
inline constexpr std::size_t kMostCurves = 10;
/// A confusion matrix of more classes has too many cells for a picture.
inline constexpr std::size_t kMostPlottedClasses = 256;

}  // namespace tessera::report
