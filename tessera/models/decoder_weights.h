// SPDX-License-Identifier: Apache-2.0
// Names and layouts of the families of decoder.h in Hugging Face's files.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tessera/models/module_order.h"
#include "tessera/models/weight_map.h"

namespace tessera::models {

/// The composition under Hugging Face's names: ours with "model." before them, but for what stands
/// behind the trunk; queries, keys and values apart, and so gate and up projections.
Composition compose_decoder(const ParamInfo& info);
/// The same where files hold queries, keys and values as rows of one matrix, and gate and up too
/// (Phi 3).
Composition compose_fused_decoder(const ParamInfo& info);
/// Rotary frequencies that old versions stored among the weights.
bool is_rotary_buffer(std::string_view name);
/// The weight map of such a family.
WeightMap decoder_weights(Composition (*compose)(const ParamInfo& info) = compose_decoder);

/// The modules of a layer in the order of torch; the defaults are LLaMA's.
struct DecoderModules {
  std::vector<std::string> attention = {"q_proj", "k_proj", "v_proj", "o_proj"};
  std::vector<std::string> mlp = {"gate_proj", "up_proj", "down_proj"};
  std::vector<std::string> norms = {"input_layernorm", "post_attention_layernorm"};
};
/// The module order of such a family.
ModuleOrder decoder_order(const DecoderModules& layer = {});

}  // namespace tessera::models
