// SPDX-License-Identifier: Apache-2.0
// The requirements of a model's parameters on their buffers.
#pragma once

#include <functional>
#include <string>

#include "tessera/parallel/packed_weights.h"
#include "tessera/parallel/weight_tiles.h"

namespace tessera::parallel {

/// The requirements of a model's parameters on their buffers, whatever the layout; see
/// WeightOptions.
struct ParameterRules {
  std::function<bool(const std::string&)> frozen = {};
  std::function<int(const std::string&)> apart = {};
  std::function<bool(const std::string&)> packed = {};
  PackingOptions packing = {};
  TileCount tiles = {};
};

}  // namespace tessera::parallel
