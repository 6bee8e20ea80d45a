// SPDX-License-Identifier: Apache-2.0
// The key `tiling`: which weights are divided into tiles of rows, and how many.
#pragma once

#include <string>
#include <vector>

#include "tessera/config/fields.h"
#include "tessera/nn/block.h"
#include "tessera/optim/options.h"
#include "tessera/parallel/options.h"
#include "tessera/parallel/parameter_rules.h"

namespace tessera::parallel {

/// The parts of a configuration on which tiles depend.
struct TilingChoice {
  const json::Value& tiling;
  const optim::OptimizerOptions& optimizer;
  const ParallelOptions& parallel;
  bool sparse_gradients;
  bool gathers;  ///< several data-parallel ranks gather weights for each other (ZeRO stage 3)
};

/// Returns the number of tiles of each parameter, or an empty function if none is divided, and
/// reports what the key cannot mean for the model's parameters, which have `rules`. Does nothing
/// without the key.
TileCount tiles_by(const TilingChoice& choice,
                   const nn::ParamInfos& parameters,
                   const ParameterRules& rules,
                   std::vector<std::string>& notes,
                   config::Problems& problems,
                   const config::Origins& origins);

}  // namespace tessera::parallel
