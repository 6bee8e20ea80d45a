// SPDX-License-Identifier: Apache-2.0
// Keys of Hugging Face's config.json that families with experts share.
#pragma once

#include <cstdint>
#include <vector>

#include "tessera/config/json.h"
#include "tessera/models/decoder_options.h"
#include "tessera/models/hf_config.h"

namespace tessera::models {

/// Sets the form of the balance loss that transformers computes: over the tokens of all layers
/// together, and not divided by the number of choices.
void use_pooled_balance(MoeOptions& moe, double coefficient);
/// Reads the coefficient of the balance loss. As in transformers, it counts only if
/// `output_router_logits` is true.
void read_balance(const HfConfig& keys,
                  MoeOptions& out,
                  double absent,
                  const char* key = "router_aux_loss_coef");
/// Writes both keys.
void write_balance(const MoeOptions& moe,
                   json::Value& hf_config,
                   const char* key = "router_aux_loss_coef");
/// Refuses noise on router inputs, which is not built.
void refuse_jitter(const HfConfig& keys, const char* key);

/// Reads `decoder_sparse_step` and `mlp_only_layers`: which layers are sparse (Qwen). Needs the
/// number of layers.
void read_sparse_step(const HfConfig& keys, DecoderOptions& out);
void write_sparse_step(const DecoderOptions& options, json::Value& hf_config);
/// Writes the numbers of experts and of choices. Throws Error{Unsupported} with `architecture` for
/// options of `model.moe` that transformers has no keys for: capacity, z-loss, a router of another
/// kind than `known`, and shared experts unless `shared`.
void write_experts(const DecoderOptions& options,
                   const char* architecture,
                   const MoeOptions::Router& known,
                   bool shared,
                   const char* count_key,
                   json::Value& hf_config);
/// Throws Error{Unsupported} unless experts have the width ffn_hidden_size and are in every layer,
/// and their weights are normalized, or not, as transformers' model always does.
void require_plain_experts(const DecoderOptions& options,
                           const char* architecture,
                           bool normalized);
/// The keys that may be given with `model.from`: those of every decoder, and of `model.moe` those
/// that change the training but not what the model computes.
std::vector<Adjustable> adjustable_with_experts();
/// The hidden width of an expert: the one of `model.moe`, or that of the MLP.
std::int64_t expert_width(const DecoderOptions& options);

}  // namespace tessera::models
