// SPDX-License-Identifier: Apache-2.0
// Hugging Face's config.json for the families of decoder.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/config/json.h"
#include "tessera/models/decoder_options.h"
#include "tessera/models/hf_config.h"

namespace tessera::models {

/// A family's properties in Hugging Face: its names, its keys, and the defaults of absent keys.
struct HfDecoder {
  std::string model_type, architecture;  ///< "mistral", "MistralForCausalLM"
  std::int64_t layers = 32, hidden = 4096, heads = 32, vocab = 32000, positions = 2048, ffn = 11008;
  std::int64_t kv_heads = 0;  ///< 0: same as the number of heads
  std::int64_t head_dim = 0;  ///< 0: hidden / heads
  double rms_norm_eps = 1e-6, rope_theta = 10000.0;
  const char* activation_key = "hidden_act";
  const char* activation = "silu";
  bool tied = false;
  bool has_attention_bias = false;  ///< the key attention_bias exists
  bool has_mlp_bias = false;        ///< the key mlp_bias exists
  bool has_experts = false;         ///< the family reads and writes the keys of `model.moe`
};
/// Reads the keys that all these families have. Refuses quantized and pruned weights, and rotary
/// scalings whose result depends on the longest sequence of a batch.
void read_decoder(const HfConfig& keys, const HfDecoder& hf, DecoderOptions& out);
/// `layer_types`, or an empty list if absent; throws for unknown values.
std::vector<std::string> layer_types_of(const HfConfig& keys);
void read_layer_types(const HfConfig& keys, DecoderOptions& out);
/// Qwen's windows: none unless `use_sliding_window` is set; then in layers from `max_window_layers`
/// on, unless layer_types specifies otherwise.
void read_late_windows(const HfConfig& keys, DecoderOptions& out);
void late_windows_to_hf(const DecoderOptions& options, json::Value& hf_config);
/// `sliding_window` in Hugging Face's form: null for none.
json::Value window_to_hf(const DecoderOptions& options);
/// `no_rope_layers` and `no_rope_layer_interval`: n if exactly every n-th layer has no rotary
/// positions, 0 if all have them; nothing for another list.
std::optional<std::int64_t> read_no_rope_interval(const HfConfig& keys);
/// Writes both keys; `rotary` is true for layers with rotary positions.
void write_no_rope(const std::vector<bool>& rotary, std::int64_t interval, json::Value& hf_config);
/// Writes the keys that all these families have, from resolved options.
json::Value decoder_to_hf(const DecoderOptions& options, const HfDecoder& hf);

}  // namespace tessera::models
