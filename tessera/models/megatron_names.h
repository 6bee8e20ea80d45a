// SPDX-License-Identifier: Apache-2.0
// Names for families that Megatron-LM can train: with GPTModel, RMS norms, rotary positions and a
// gated MLP; with BertModel and T5Model, learned positions and layer norms before the branches. The
// family declares them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/registry.h"
#include "tessera/config/json.h"

namespace tessera::models {

/// Identifies a family among these decoders; no two families are equal.
struct RotaryKind {
  bool qkv_bias = false;  ///< queries, keys and values have biases (--add-qkv-bias)
  bool qk_norm = false;   ///< the heads of queries and keys have norms (--qk-layernorm)
  bool experts = false;   ///< layers have experts (--num-experts)
  bool operator==(const RotaryKind&) const = default;
};

/// Hugging Face's names of the modules of a layer with experts, and of the keys of config.json that
/// describe them.
struct MegatronExpertNames {
  std::string router = "mlp.gate", experts = "mlp.experts";
  std::string gate = "gate_proj", up = "up_proj", down = "down_proj";  ///< of an expert
  std::string count_key = "num_experts", width_key = "moe_intermediate_size";
  /// Says whether the weights of a token's experts add up to 1; empty: they always do.
  std::string normalized_key = "norm_topk_prob";
  /// Lists the layers that have an MLP instead of experts; empty: all layers have experts.
  std::string dense_key = "mlp_only_layers";
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
  MegatronExpertNames of_experts = {};  ///< if the family has experts
};

/// Filled by the model families.
Registry<MegatronNames>& megatron_names();
/// The names of the family of this kind. Throws Error{Unsupported} with `what` if none is
/// implemented.
const MegatronNames& megatron_names_of(const RotaryKind& kind, const std::string& what);
#define TESSERA_MEGATRON_NAMES(family, ...)                   \
  static const bool TESSERA_UNIQUE(tessera_megatron_names_) = \
      ::tessera::models::megatron_names().add(family, __VA_ARGS__)

/// A stack of layers, and the modules of a layer. Projections have a ".weight" [out, in] and a
/// ".bias", norms a ".weight" and a ".bias".
struct MegatronStack {
  std::string layers = {};  ///< before a layer's number: "bert.encoder.layer"; empty: no stack
  std::string attention_norm = {}, queries = {}, keys = {}, values = {}, attention_output = {};
  /// Attention to the other stack, in a decoder.
  std::string cross_norm = {}, cross_queries = {}, cross_keys = {}, cross_values = {},
              cross_output = {};
  std::string mlp_norm = {}, mlp_input = {}, mlp_output = {};
  std::string final_norm = {};  ///< after the last layer, with its whole name
};

/// The names of an encoder with a head for masked tokens, or of an encoder with a decoder, in a
/// family's files.
struct MegatronLearnedNames {
  std::string table;                   ///< weight of the token table
  std::vector<std::string> positions;  ///< weights that Megatron-LM has as one table
  std::string token_types = {};        ///< weight; empty: none
  MegatronStack encoder, decoder = {};
  std::string head;                              ///< weight over the vocabulary
  std::string head_bias, untied_head_bias = {};  ///< empty: `head_bias` in both cases
  std::string head_dense = {}, head_norm = {};   ///< modules before the head
  std::string pooler = {}, pair_head = {};       ///< modules that classify pairs of texts
  /// The config.json for the facts vocab_size, hidden_size, ffn_hidden_size, num_layers,
  /// num_decoder_layers, num_heads, max_positions, type_vocab_size, activation and head_activation
  /// (Hugging Face's names), norm_eps, dropout, attention_dropout, init_std, tie_embeddings,
  /// head_bias and pair_head (whether the model has them).
  json::Value (*config_of)(const json::Value& facts) = nullptr;
};

/// Filled by the model families.
Registry<MegatronLearnedNames>& megatron_learned_names();
/// The names of the family with or without a decoder. Throws Error{Unsupported} with `what` if none
/// is implemented.
const MegatronLearnedNames& megatron_learned_names_of(bool decoder, const std::string& what);
#define TESSERA_MEGATRON_LEARNED(family, ...)                   \
  static const bool TESSERA_UNIQUE(tessera_megatron_learned_) = \
      ::tessera::models::megatron_learned_names().add(family, __VA_ARGS__)

}  // namespace tessera::models
