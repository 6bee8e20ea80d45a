// SPDX-License-Identifier: Apache-2.0
// The options, the keys of Hugging Face and the weight map that families of decoder.h share.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/models/decoder.h"
#include "tessera/models/family.h"
#include "tessera/models/hf_config.h"

namespace tessera::models {

struct DecoderOptions : FamilyOptions {
  DecoderOptions() { tie_embeddings = false; }
  std::optional<std::int64_t> head_dim;
  double rope_theta = 10000.0;
  std::string rope_scaling = "default";
  double rope_factor = 1.0, rope_low_freq_factor = 1.0, rope_high_freq_factor = 4.0;
  std::int64_t rope_original_positions = 8192;
  double rope_beta_fast = 32.0, rope_beta_slow = 1.0;
  std::optional<double> rope_attention_factor;
  std::string activation = "silu";
  double attention_dropout = 0.0;
  double rms_norm_eps = 1e-5;
  /// The following two are described by families with sliding windows alone.
  std::int64_t sliding_window = 0;
  std::vector<std::string> layer_types;  ///< "sliding_attention", "full_attention"; empty: the rule

 protected:
  /// What differs between families in the documentation of the sizes; the defaults are LLaMA's.
  struct Texts {
    std::string positions_default = "data.sequence_length, or 1024 if neither is given";
    std::string ffn_default = "of the preset, or 8/3 x hidden_size rounded up to a multiple of 256";
  };
  /// Sizes and rotary positions.
  void describe_shape(config::Fields& fields,
                      const std::vector<Preset>& presets,
                      const Texts& texts);
  void describe_windows(config::Fields& fields);
  /// Everything else; the last call of a family's describe().
  void describe_rest(config::Fields& fields);

 private:
  void describe_rotary(config::Fields& fields);
};

/// The name, the presets and the switches of one family of decoders.
struct DecoderFamily {
  std::string name;
  std::vector<Preset> presets;
  /// Sets what the options have no common key for, after everything else is set.
  void (*specialize)(const DecoderOptions& options, DecoderShape& shape) = nullptr;
};
/// Family::resolve of such a family.
Resolved resolve_decoder(const DecoderFamily& family,
                         const DecoderOptions& options,
                         std::int64_t tokenizer_size,
                         std::optional<std::int64_t> sequence_length,
                         config::Problems& problems,
                         const config::Origins& origins);
/// One kind for each layer: with the window where layer_types says so, or, where it is empty, where
/// `slides` does for the layer's number.
std::vector<DecoderLayerKind> windows_by_layer(const DecoderOptions& options,
                                               std::int64_t layers,
                                               bool (*slides)(std::int64_t layer));

/// Hugging Face's defaults of absent keys.
struct DecoderDefaults {
  std::string model_type;
  std::int64_t layers = 32, hidden = 4096, heads = 32, vocab = 32000, positions = 2048, ffn = 11008;
  std::int64_t kv_heads = 0;  ///< 0: as many as heads
  std::int64_t head_dim = 0;  ///< 0: hidden / heads
  double rms_norm_eps = 1e-6, rope_theta = 10000.0;
  const char* activation_key = "hidden_act";
  const char* activation = "silu";
  bool tied = false;
};
/// Reads what all these families have, and refuses quantized and pruned weights and rotary scalings
/// whose result depends on the longest text of a batch.
void read_decoder(const HfConfig& keys, const DecoderDefaults& defaults, DecoderOptions& out);
/// Reads rope_parameters (transformers 5), or rope_scaling beside rope_theta.
void read_rotary(const HfConfig& keys, const char* object, DecoderOptions& out);
/// `layer_types`, or nothing where it is absent; other words are refused.
std::vector<std::string> layer_types_of(const HfConfig& keys);
void read_layer_types(const HfConfig& keys, DecoderOptions& out);
/// The share of a head's channels that turn: of rope_parameters, or a key beside it.
double partial_rotary_factor(const HfConfig& keys, double absent);
void set_partial_rotary_factor(json::Value& hf_config, double share);
/// Qwen's windows: none unless `use_sliding_window`, and then in layers from `max_window_layers`
/// on, unless layer_types says otherwise.
void read_late_windows(const HfConfig& keys, DecoderOptions& out);
void late_windows_to_hf(const DecoderOptions& options, json::Value& hf_config);
/// `sliding_window` as Hugging Face has it: null for none.
json::Value window_to_hf(const DecoderOptions& options);
/// The keys that all these families have, of resolved options.
json::Value decoder_to_hf(const DecoderOptions& options,
                          const std::string& architecture,
                          const DecoderDefaults& defaults);

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

}  // namespace tessera::models
