// SPDX-License-Identifier: Apache-2.0
// Names and layouts of the families of decoder.h in Hugging Face's files.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tessera/models/module_order.h"
#include "tessera/models/weight_map.h"

namespace tessera::models {

/// The composition under Hugging Face's names: tessera's names with the prefix "model.", except for
/// parameters after the trunk; queries, keys and values are separate tensors, as are gate and up
/// projections.
Composition compose_decoder(const ParamInfo& info);
/// The same for files with queries, keys and values as rows of one matrix, and gate and up as rows
/// of another (Phi 3).
Composition compose_fused_decoder(const ParamInfo& info);
/// The queries, keys and values of a layer as rows of one matrix, or vector, `theirs`.
Composition compose_fused_qkv(const ParamInfo& info, const std::string& theirs);
/// True for rotary frequencies, which old versions stored among the weights.
bool is_rotary_buffer(std::string_view name);
/// The name without the prefix of the text model in files of multimodal models, which stands before
/// or after "model.": a WeightMap::known_as.
std::string without_text_prefix(std::string name);
/// The weight map of such a family.
WeightMap decoder_weights(Composition (*compose)(const ParamInfo& info) = compose_decoder);

/// The modules of a layer in torch's order; the defaults are LLaMA's.
struct DecoderModules {
  std::vector<std::string> attention = {"q_proj", "k_proj", "v_proj", "o_proj"};
  std::vector<std::string> mlp = {"gate_proj", "up_proj", "down_proj"};
  std::vector<std::string> norms = {"input_layernorm", "post_attention_layernorm"};
};
/// The module order of such a family.
ModuleOrder decoder_order(const DecoderModules& layer = {});

}  // namespace tessera::models
