// SPDX-License-Identifier: Apache-2.0
// The files of experts in a DeepSpeed checkpoint: one for each expert of each layer.
#pragma once

#include <compare>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/checkpoint/safetensors.h"
#include "tessera/config/json.h"
#include "tessera/interop/foreign.h"

namespace tessera::interop::deepspeed {

/// A layer of experts, counted from 0 without other layers, and an expert of it by its number among
/// those of all ranks; layer -1: the file has this expert of every layer, as old versions write.
struct ExpertPlace {
  int layer = -1, expert = 0;
  auto operator<=>(const ExpertPlace&) const = default;
};
using ExpertFiles = std::map<ExpertPlace, std::filesystem::path>;

/// "layer_0_expert_3_mp_rank_00_model_states.pt", "expert_3_mp_rank_00_model_states.pt". Throws
/// Error{Unsupported} for a file of a tensor-parallel rank other than 0.
std::optional<ExpertPlace> expert_place_of(const std::filesystem::path& file);
/// The rank in "expp_rank_0_mp_rank_00_optim_states.pt", the optimizer of a rank of the group that
/// divides the experts, with all that this rank trains. Errors as expert_place_of().
std::optional<int> expert_optimizer_of(const std::filesystem::path& file);

/// The name without the modules that DeepSpeed's MoE puts around a router and its experts:
/// "model.layers.0.mlp.deepspeed_moe.gate.wg.weight" is "model.layers.0.mlp.gate.weight", and
/// "...mlp.deepspeed_moe.experts.deepspeed_experts.3.up_proj.weight" is
/// "...mlp.experts.3.up_proj.weight".
std::string plain_expert_name(std::string name);

/// Appends the tensors of the files to `out` under plain names, and gives those that are there
/// already plain names. `num_experts`: of each layer, as model_states has it, or null. Throws
/// Error{Format} for an expert without a file, with its name, and for a tensor that occurs twice.
void add_experts(const ExpertFiles& files,
                 const json::Value* num_experts,
                 const std::filesystem::path& folder,
                 std::vector<checkpoint::StreamedTensor>& out);

/// The parameters of one of `ranks` ranks that divide the experts evenly, in torch's order: those
/// of a layer's experts follow its router. `weights`: of the module without buffers, under plain
/// names, experts last. `apart`: the experts of all layers follow the other parameters, as in
/// groups of an optimizer. Empty if the place of an expert is not known, or ranks do not divide the
/// experts.
std::vector<const checkpoint::StreamedTensor*> parameters_of_rank(
    const std::vector<const checkpoint::StreamedTensor*>& weights, int rank, int ranks, bool apart);

}  // namespace tessera::interop::deepspeed
