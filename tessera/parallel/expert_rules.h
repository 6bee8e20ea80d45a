// SPDX-License-Identifier: Apache-2.0
// Rules between experts and the layout: parallel.expert, and what the other forms of parallelism
// require of sparse layers.
#pragma once

#include <cstdint>

#include "tessera/config/fields.h"
#include "tessera/config/json.h"
#include "tessera/nn/block.h"
#include "tessera/optim/options.h"
#include "tessera/parallel/options.h"
#include "tessera/parallel/zero_options.h"

namespace tessera::parallel {

struct Layout;

/// The parts of a configuration on which the places of experts depend.
struct ExpertChoice {
  const ParallelOptions& parallel;
  const ZeroOptions& zero;
  const optim::OptimizerOptions& optimizer;
  const json::Value& description;          ///< of the model
  std::int64_t tokens_of_micro_batch = 0;  ///< 0: unknown
};

/// Sets the number of ranks among which experts are divided (parallel.expert), and checks what the
/// layout requires of the experts of the model, and of the optimizer. Problems have the place of
/// the key to change.
void divide_experts(const ExpertChoice& choice,
                    const nn::Model& model,
                    Layout& layout,
                    config::Problems& problems,
                    const config::Origins& origins);

}  // namespace tessera::parallel
