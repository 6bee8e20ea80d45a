// SPDX-License-Identifier: Apache-2.0
// DeepSpeed's estimators of model states, with the same numbers, for users who know them. They omit
// activations, buckets and the base memory of a process; tessera's own estimate is in memory.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/nn/block.h"

namespace tessera::report {

/// Parameter counts in DeepSpeed's way: shared parameters once, and the largest number that one
/// layer owns itself.
struct ModelSize {
  std::int64_t total_params = 0, largest_layer_params = 0;
};
ModelSize model_size(const nn::Model& model);

struct Machines {
  std::int64_t gpus_per_node = 1, nodes = 1;
};
struct EstimateRow {
  std::int64_t cpu_bytes = 0, gpu_bytes = 0;
  std::string options;  ///< "offload_param=none, offload_optimizer=cpu , zero_init=1"
};
/// Rows in DeepSpeed's order, with its buffer factor of 1.5. Source: DeepSpeed 0.19,
/// estimate_zero2_model_states_mem_needs_all_cold and estimate_zero3_... Throws Error{Config} for
/// fewer machines than one, and if parameters times ranks are more than 1e18.
std::vector<EstimateRow> estimate_zero2(const ModelSize& size, const Machines& machines);
std::vector<EstimateRow> estimate_zero3(const ModelSize& size, const Machines& machines);

/// DeepSpeed's header and table of `stage`, 2 or 3.
std::string estimate_text(int stage, const ModelSize& size, const Machines& machines);

}  // namespace tessera::report
