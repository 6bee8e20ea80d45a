// SPDX-License-Identifier: Apache-2.0
// Pictures of what a classifier gets right and wrong.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/tasks/metrics.h"

namespace tessera::report {

/// An SVG of a confusion matrix: rows are true classes, columns predicted ones; a cell is as dark
/// as its share of the row. `names`: of the classes. `confusion`: [true, predicted].
std::string confusion_plot(const std::vector<std::string>& names,
                           const std::vector<std::int64_t>& confusion);
/// An SVG of a ROC curve, with its area in the title.
std::string roc_plot(const std::vector<tasks::RocPoint>& curve, double area);

}  // namespace tessera::report
