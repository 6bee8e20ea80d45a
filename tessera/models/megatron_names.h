// SPDX-License-Identifier: Apache-2.0
// Hugging Face's names for families that Megatron-LM's GPTModel can train with RMS norms, rotary
// positions and a gated MLP. The family declares them.
#pragma once

#include <string>
#include <string_view>

#include "tessera/base/registry.h"
#include "tessera/config/json.h"

namespace tessera::models {

/// Identifies a family among these decoders; no two families are equal.
struct RotaryKind {
  bool qkv_bias = false;  ///< queries, keys and values have biases (--add-qkv-bias)
  bool qk_norm = false;   ///< the heads of queries and keys have norms (--qk-layernorm)
  bool operator==(const RotaryKind&) const = default;
};

/// Hugging Face's names of the model's modules and of a layer's modules. Matrices are [out, in].
struct MegatronNames {
  RotaryKind kind;
  std::string architecture, model_type;  ///< of config.json
  std::string table = "model.embed_tokens", layers = "model.layers", final_norm = "model.norm",
              head = "lm_head";
  std::string attention_norm = "input_layernorm", queries = "self_attn.q_proj",
              keys = "self_attn.k_proj", values = "self_attn.v_proj",
              attention_output = "self_attn.o_proj", query_norm = "self_attn.q_norm",
              key_norm = "self_attn.k_norm", mlp_norm = "post_attention_layernorm",
              gate = "mlp.gate_proj", up = "mlp.up_proj", down = "mlp.down_proj";
};

/// Filled by the model families.
Registry<MegatronNames>& megatron_names();
/// The names of the family of this kind. Throws Error{Unsupported} with `what` if none is
/// implemented.
const MegatronNames& megatron_names_of(const RotaryKind& kind, const std::string& what);
#define TESSERA_MEGATRON_NAMES(family, ...)             \
  static const bool tessera_megatron_names_registered = \
      ::tessera::models::megatron_names().add(family, __VA_ARGS__)

}  // namespace tessera::models
