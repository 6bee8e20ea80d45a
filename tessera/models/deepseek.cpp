// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/deepseek.h"

#include <cmath>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/models/expert_weights.h"
#include "tessera/models/moe_hf.h"

namespace tessera::models {

DeepseekOptions::DeepseekOptions() {
  rms_norm_eps = 1e-6;
  moe.num_experts = 8;
  moe.ffn_hidden_size = 96;
  moe.first_dense = 1;
  moe.shared = 1;
  moe.losses.balance = 0.0;
}

void DeepseekOptions::describe_deepseek(config::Fields& fields,
                                        const std::vector<Preset>& presets) {
  describe_shape(fields, presets, {});
  const auto size = [&](const char* key, std::int64_t& value, std::string text, double min) {
    fields.field(key, value, {.text = std::move(text), .unit = "channels", .min = min, .max = 1e6});
  };
  size("q_lora_rank", q_lora_rank, "Width of the latent vector of queries; 0: none.", 0);
  size("kv_lora_rank", kv_lora_rank, "Width of the latent vector of keys and values.", 1);
  size("qk_nope_head_dim",
       qk_nope_head_dim,
       "Channels of a head's queries and keys without positions.",
       1);
  size(
      "qk_rope_head_dim",
      qk_rope_head_dim,
      "Channels of a head's queries and keys with rotary positions; even. All heads share those of "
      "the keys.",
      2);
  size("v_head_dim", v_head_dim, "Channels of a head's values.", 1);
  fields.field("rope_interleaved",
               rope_interleaved,
               {.text = "Whether rotary positions turn neighbouring channels, or else channels of "
                        "the two halves."});
  describe_attention_bias(
      fields,
      "Whether the projections to latent vectors and the output projection of attention have "
      "biases.");
  describe_rest(fields);
}

void specialize_deepseek(const DeepseekOptions& options, DecoderShape& shape) {
  TESSERA_REQUIRE(options.qk_rope_head_dim % 2 == 0,
                  Config,
                  "model.qk_rope_head_dim is odd, and rotary positions turn pairs of channels",
                  "choose an even number");
  shape.latent = LatentChannels{.query_rank = options.q_lora_rank,
                                .rank = options.kv_lora_rank,
                                .plain = options.qk_nope_head_dim,
                                .rotary = options.qk_rope_head_dim,
                                .values = options.v_head_dim};
  shape.head_dim = shape.latent->of_keys();
  shape.num_kv_heads = shape.num_heads;
  shape.rotary_interleaved = options.rope_interleaved;
  double sharpness = 1.0;
  if (options.rope_scaling != "default" && options.rope_mscale_all_dim > 0 &&
      options.rope_factor > 1)
    sharpness = 0.1 * options.rope_mscale_all_dim * std::log(options.rope_factor) + 1.0;
  shape.attention_scale =
      sharpness * sharpness / std::sqrt(static_cast<double>(shape.latent->of_keys()));
}

void read_deepseek(const HfConfig& keys, DeepseekOptions& out) {
  out.q_lora_rank = keys.given("q_lora_rank") ? keys.count_or_null("q_lora_rank", 1e6) : 1536;
  out.kv_lora_rank = keys.count("kv_lora_rank", 512, 1e6);
  out.qk_nope_head_dim = keys.count("qk_nope_head_dim", 128, 1e6);
  out.qk_rope_head_dim = keys.count("qk_rope_head_dim", 64, 1e6);
  keys.refuse("qk_rope_head_dim", out.qk_rope_head_dim % 2 == 0, "an even number");
  out.v_head_dim = keys.count("v_head_dim", 128, 1e6);
  out.head_dim = out.qk_nope_head_dim + out.qk_rope_head_dim;
  keys.refuse("num_key_value_heads",
              out.num_kv_heads == out.num_heads,
              "num_attention_heads, because latent attention shares no heads");
  out.num_kv_heads.reset();
  MoeOptions& moe = out.moe;
  moe.ffn_hidden_size = keys.count("moe_intermediate_size", 1408, 1e7);
  moe.first_dense = static_cast<std::int64_t>(keys.number("first_k_dense_replace", 0, 0, 1e4));
  moe.shared = static_cast<std::int64_t>(keys.number("n_shared_experts", 0, 0, 1e4));
}

void write_deepseek(const DeepseekOptions& options,
                    const char* architecture,
                    const MoeOptions::Router& known,
                    json::Value& hf_config) {
  const MoeOptions& moe = options.moe;
  TESSERA_REQUIRE(moe.every == 1 && moe.layers.empty() && !moe.shared_gate,
                  Unsupported,
                  std::string("Hugging Face's ") + architecture +
                      " has experts in all layers from first_dense on, and no gate of shared ones",
                  "leave model.moe.every, layers and shared_gate at their defaults");
  const std::int64_t width = expert_width(options), shared = moe.shared_width(width);
  TESSERA_REQUIRE(shared % width == 0,
                  Unsupported,
                  std::string("Hugging Face's ") + architecture +
                      " has shared experts of the width of the others",
                  "choose a multiple of model.moe.ffn_hidden_size for "
                  "model.moe.shared_ffn_hidden_size");
  write_experts(options, architecture, known, true, "n_routed_experts", hf_config);
  const auto count = [&](const char* key, std::int64_t value) {
    hf_config[key] = json::Value::integer(value);
  };
  count("moe_intermediate_size", width);
  count("n_shared_experts", shared / width);
  count("first_k_dense_replace", moe.first_dense);
  count("n_group", moe.router.groups);
  count("topk_group", moe.router.top_groups);
  hf_config["routed_scaling_factor"] = real_to_hf(moe.router.scale);
  hf_config["norm_topk_prob"] = json::Value::boolean(moe.router.normalize);
  hf_config["q_lora_rank"] =
      options.q_lora_rank > 0 ? json::Value::integer(options.q_lora_rank) : json::Value();
  count("kv_lora_rank", options.kv_lora_rank);
  count("qk_nope_head_dim", options.qk_nope_head_dim);
  count("qk_rope_head_dim", options.qk_rope_head_dim);
  count("v_head_dim", options.v_head_dim);
  // transformers derives the frequencies from this key, and other programs do not read it.
  count("head_dim", options.qk_rope_head_dim);
}

std::vector<PresetValue> values_of(const DeepseekSizes& sizes) {
  return {{"q_lora_rank", sizes.q_lora_rank},
          {"kv_lora_rank", std::int64_t{512}},
          {"qk_nope_head_dim", std::int64_t{128}},
          {"qk_rope_head_dim", std::int64_t{64}},
          {"v_head_dim", std::int64_t{128}},
          {"rope_scaling", std::string("yarn")},
          {"rope_factor", 40.0},
          {"rope_original_positions", std::int64_t{4096}},
          {"rope_mscale", sizes.mscale},
          {"rope_mscale_all_dim", sizes.mscale},
          {"moe.num_experts", sizes.experts},
          {"moe.top_k", sizes.top_k},
          {"moe.ffn_hidden_size", sizes.width},
          {"moe.shared", sizes.shared},
          {"moe.first_dense", sizes.first_dense},
          {"moe.router.groups", sizes.groups},
          {"moe.router.top_groups", sizes.top_groups},
          {"moe.router.scale", sizes.scale}};
}

Composition compose_deepseek(const ParamInfo& info) {
  static const ExpertNames names = {.shared = "mlp.shared_experts"};
  return is_of_experts(info) ? compose_experts(info, "model.", names) : compose_decoder(info);
}

WeightMap deepseek_weights() {
  WeightMap out = decoder_weights(compose_deepseek);
  // A layer that predicts the token after the next one follows those of the model.
  out.may_be_unused = [](std::string_view name) { return name.starts_with("model.layers.61."); };
  return out;
}

}  // namespace tessera::models
