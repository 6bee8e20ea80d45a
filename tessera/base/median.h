// SPDX-License-Identifier: Apache-2.0
// The median of measured values, which a few slow ones do not move.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace tessera {

/// Returns the upper median; 0 if there are no values.
inline double median_of(std::vector<double> values) {
  if (values.empty()) return 0.0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace tessera
