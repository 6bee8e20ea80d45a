// SPDX-License-Identifier: Apache-2.0
// Quantization-aware training in a plan.
#pragma once

#include <string>
#include <vector>

#include "tessera/config/fields.h"
#include "tessera/planner/named_model.h"

namespace tessera::planner {

struct TrainConfig;

/// Lets the layers of the model round, if the section `qat` asks for it. Reports what it does not
/// go together with: adapters, tiles, tensor parallelism, objectives that do not compute the head's
/// cross-entropy, and, for nvfp4 inputs, ranks that share the tokens of a sample. Throws the errors
/// of models::quantization_aware.
void plan_quantization_aware(const TrainConfig& config,
                             const NamedModel& model,
                             std::vector<std::string>& notes,
                             config::Problems& problems,
                             const config::Origins& origins);

}  // namespace tessera::planner
