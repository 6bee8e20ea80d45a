// SPDX-License-Identifier: Apache-2.0
// Adapters of the matrices of experts: which of them the options select, and which tensors of
// PEFT's files they are. The adapters of all experts of a layer and projection are one
// AdapterModule, as their matrices are one parameter. PEFT knows two forms: an adapter for each
// expert (target_modules, where the model has a module for each), and one for a stacked parameter
// (target_parameters).
#pragma once

#include <memory>
#include <vector>

#include "tessera/models/adapter.h"

namespace tessera::models {

/// The adapters of a stacked parameter; none if the options select none. Throws Error{Unsupported}
/// for some but not all experts of a layer, for different ranks, for adapters of another kind than
/// LoRA, and where both forms select a matrix.
std::vector<AdapterModule> find_expert_adapters(const std::shared_ptr<const ParamInfo>& info,
                                                const AdapterRules& rules,
                                                const AdapterOptions& options,
                                                const WeightMap& map);
/// Declares the parameters of the modules, which are all those of `weight`.
void adapt_experts(nn::Params& params, Param& weight, const std::vector<AdapterModule>& modules);

}  // namespace tessera::models
