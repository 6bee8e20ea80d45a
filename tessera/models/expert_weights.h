// SPDX-License-Identifier: Apache-2.0
// Names and layouts of experts in Hugging Face's files: most families publish one matrix for each
// expert and projection, which are one parameter here, and others publish stacked ones.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/models/weight_map.h"

namespace tessera::models {

/// The names that a family publishes for the modules of ExpertsSpec, without the layer.
struct ExpertNames {
  std::string router = "mlp.gate";
  std::string correction = "mlp.gate.e_score_correction_bias";
  /// The module of expert j is `experts`.j, with its projections `gate`, `up` and `down`.
  std::string experts = "mlp.experts";
  std::string gate = "gate_proj", up = "up_proj", down = "down_proj";
  std::string shared = "mlp.shared_expert";  ///< the shared experts, as one gated MLP
};

/// True for a parameter of a sparse feed-forward network, by the default names of ExpertsSpec.
bool is_of_experts(const ParamInfo& info);
/// True for the weight of a router.
bool is_router(const ParamInfo& info);
/// The composition of such a parameter from published tensors, one for each expert and projection.
/// `prefix` precedes the name of the layer: "model.".
Composition compose_experts(const ParamInfo& info,
                            const std::string& prefix,
                            const ExpertNames& names = {});

/// The names of files with one tensor for each projection (Granite, JetMoE): `module`.router.layer
/// [E, C], `module`.input_linear [E, 2 F, C] with the gates first, `module`.output_linear [E, C,
/// F].
struct StackedNames {
  std::string module;  ///< "block_sparse_moe", without the layer
};
Composition compose_stacked_experts(const ParamInfo& info,
                                    const std::string& prefix,
                                    const StackedNames& names);

/// Composes [E, 2, F, C], or its bias [E, 2, F], from parts(e, g): gate (g 0) or up (g 1) of expert
/// e, as an array [F, C] or [F].
template <class Parts>
Composition stacked_pairs(const ParamInfo& info, Parts parts) {
  const Shape& shape = info.shape;
  Shape one = shape;
  one[0] = one[1] = 1;
  std::vector<Composition> experts;
  for (std::int64_t e = 0; e < shape[0]; ++e)
    experts.push_back(Composition::concat({parts(e, 0).viewed(one), parts(e, 1).viewed(one)}, 1));
  return Composition::concat(experts, 0);
}

}  // namespace tessera::models
