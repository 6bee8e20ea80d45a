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
/// An SVG of a ROC curve, with its area in the title.
std::string roc_plot(const std::vector<tasks::RocPoint>& curve, double area);

}  // namespace tessera::report
