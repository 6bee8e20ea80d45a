// SPDX-License-Identifier: Apache-2.0
// The ranks among which the experts of a layer are divided.
#pragma once

#include "tessera/mesh/mesh.h"

namespace tessera::mesh {

/// Without axes, every rank holds all experts, and each of them whole.
struct ExpertFold {
  /// The experts are divided over these: `Ep`, and also `Cp` or the axes of tensor parallelism if
  /// experts are spread over more ranks than there are along `Ep`.
  AxisSet ep = {};
  AxisSet etp = {};  ///< each expert is split over these
  bool operator==(const ExpertFold&) const = default;
};

}  // namespace tessera::mesh
