// SPDX-License-Identifier: Apache-2.0
// Translates the placement of parameters and optimizer states by Colossal-AI's Gemini, HybridAdam
// and CPUAdam into tessera's keys.
#pragma once

#include <string>
#include <vector>

#include "tessera/config/json.h"

namespace tessera::interop {

/// Removes from `source` the keys of placement: `gemini` and `zero.model_config` with
/// placement_policy (or tensor_placement_policy), offload_optim_frac, offload_param_frac and
/// shard_param_frac, and the optimizer's nvme_offload_fraction and nvme_offload_dir. Returns the
/// members of `zero_optimization` that they set; notes what has no effect. Source: Colossal-AI's
/// GeminiPlugin and NVMeOptimizer.
json::Value take_placement(json::Value& source, std::vector<std::string>& notes);

}  // namespace tessera::interop
