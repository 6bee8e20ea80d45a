// SPDX-License-Identifier: Apache-2.0
// The parts that the versions of DeepSeek's models have in common: latent attention, first layers
// without experts, and shared experts. Sources: DeepSeek-AI 2024, "DeepSeek-V2"; 2024,
// "DeepSeek-V3 technical report".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/models/decoder_hf.h"
#include "tessera/models/decoder_options.h"
#include "tessera/models/decoder_weights.h"
#include "tessera/models/gguf_names.h"

namespace tessera::models {

struct DeepseekOptions : DecoderOptions {
  DeepseekOptions();
  std::int64_t q_lora_rank = 0, kv_lora_rank = 64, qk_nope_head_dim = 32, qk_rope_head_dim = 16,
               v_head_dim = 32;
  bool rope_interleaved = true;

 protected:
  void describe_deepseek(config::Fields& fields, const std::vector<Preset>& presets);
};
void specialize_deepseek(const DeepseekOptions& options, DecoderShape& shape);
/// Reads the keys of attention and of experts that all versions have.
void read_deepseek(const HfConfig& keys, DeepseekOptions& out);
/// Writes them. `known`: the kind of router of this version.
void write_deepseek(const DeepseekOptions& options,
                    const char* architecture,
                    const MoeOptions::Router& known,
                    json::Value& hf_config);
/// The sizes of a published model that differ between them, and all its values for a preset.
struct DeepseekSizes {
  std::int64_t q_lora_rank = 0;
  std::int64_t experts = 0, top_k = 0, width = 0, shared = 1, first_dense = 1;
  std::int64_t groups = 1, top_groups = 1;
  double scale = 1.0, mscale = 1.0;
};
std::vector<PresetValue> values_of(const DeepseekSizes& sizes);
Composition compose_deepseek(const ParamInfo& info);
WeightMap deepseek_weights();
/// The names of all versions in GGUF files, which share an architecture there. `gating`: the number
/// of the score of the router.
GgufNames deepseek_gguf_names(std::string architecture,
                              std::string model_type,
                              std::int64_t gating);

}  // namespace tessera::models
