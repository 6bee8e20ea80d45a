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

namespace {

std::int64_t size_at(const json::Value& config, const char* key) {
  const json::Value* value = config.find(key);
  return value != nullptr && value->is_number() ? value->as_integer().value_or(0) : 0;
}

constexpr const char *kPlain = "qk_nope_head_dim", *kRotated = "qk_rope_head_dim",
                     *kValues = "v_head_dim", *kRank = "kv_lora_rank";

std::vector<std::int64_t> rows_of_heads(const json::Value& config) {
  return {size_at(config, kPlain), size_at(config, kValues)};
}

/// Files describe attention in the latent space: one head of keys and values for all queries.
GgufNames::Counts gguf_counts(const json::Value& config) {
  const std::int64_t rank = size_at(config, kRank), rotated = size_at(config, kRotated);
  return {{"attention.head_count_kv", 1},
          {"attention.key_length", rank + rotated},
          {"attention.value_length", rank},
          {"attention.key_length_mla", size_at(config, kPlain) + rotated},
          {"attention.value_length_mla", size_at(config, kValues)}};
}

/// Older files, without the keys of latent attention, describe the heads themselves.
GgufNames::Values sizes_from_gguf(const GgufNames::Count& count) {
  const std::int64_t latent = count("attention.key_length_mla", true),
                     latent_values = count("attention.value_length_mla", true),
                     keys = count("attention.key_length", latent > 0),
                     values = count("attention.value_length", latent_values > 0),
                     rotated = count("rope.dimension_count", false),
                     heads = count("attention.head_count", false);
  (void)count("attention.head_count_kv", true);
  const auto number = [](std::int64_t value) { return json::Value::integer(value); };
  return {{"num_key_value_heads", number(heads)},
          {kRotated, number(rotated)},
          {kPlain, number((latent > 0 ? latent : keys) - rotated)},
          {kValues, number(latent_values > 0 ? latent_values : values)}};
}

}  // namespace

GgufNames deepseek_gguf_names(std::string architecture,
                              std::string model_type,
                              std::int64_t gating) {
  GgufNames names = rotary_decoder_names(std::move(architecture), std::move(model_type));
  std::erase_if(names.keys, [](const GgufNames::Key& key) {
    return key.gguf == "attention.head_count_kv" || key.gguf == "attention.key_length";
  });
  const auto absent = [&](const char* gguf, const char* config, json::Value value, bool real) {
    names.keys.push_back({gguf, config, real, /*required=*/false, std::move(value)});
  };
  absent("attention.q_lora_rank", "q_lora_rank", json::Value(), false);
  absent("leading_dense_block_count", "first_k_dense_replace", json::Value::integer(0), false);
  absent("expert_shared_count", "n_shared_experts", json::Value::integer(0), false);
  absent("expert_group_count", "n_group", json::Value::integer(1), false);
  absent("expert_group_used_count", "topk_group", json::Value::integer(1), false);
  absent("expert_weights_scale", "routed_scaling_factor", json::Value::number(1), true);
  names.keys.push_back({"attention.kv_lora_rank", kRank});
  names.keys.push_back({"expert_feed_forward_length", "moe_intermediate_size"});
  names.implied.emplace_back("attention_bias", json::Value::boolean(false));
  names.counts = gguf_counts;
  names.from_counts = sizes_from_gguf;
  names.rotary_channels = kRotated;
  names.yarn = GgufNames::Yarn{.truncate = true, .log_multiplier = true};

  const std::string attention = "model.layers.*.self_attn", mlp = "model.layers.*.mlp";
  remove_module(names, "blk.*.attn_k");
  remove_module(names, "blk.*.attn_v");
  set_module(names, "blk.*.attn_q_a", attention + ".q_a_proj");
  set_module(names, "blk.*.attn_q_a_norm", attention + ".q_a_layernorm");
  set_module(names, "blk.*.attn_q_b", attention + ".q_b_proj");
  set_module(names, "blk.*.attn_kv_a_mqa", attention + ".kv_a_proj_with_mqa");
  set_module(names, "blk.*.attn_kv_a_norm", attention + ".kv_a_layernorm");
  // Older files hold this matrix whole; files that are written hold its two parts.
  set_module(names, "blk.*.attn_kv_b", attention + ".kv_b_proj");
  names.parts.push_back({.theirs = attention + ".kv_b_proj.weight",
                         .files = {"blk.*.attn_k_b.weight", "blk.*.attn_v_b.weight"},
                         .rows = GgufNames::PartRows::OfHead,
                         .flat = true,
                         .count = "attention.head_count",
                         .sizes = rows_of_heads});
  for (const char* const part : {"gate", "up", "down"})
    set_module(names,
               std::string("blk.*.ffn_") + part + "_shexp",
               mlp + ".shared_experts." + part + "_proj");
  names.exact = {{"blk.*.exp_probs_b.bias", mlp + ".gate.e_score_correction_bias"}};
  add_experts(
      names,
      {.router = mlp + ".gate", .experts = mlp + ".experts", .count_key = "n_routed_experts"});
  names.constants = {{"expert_gating_func", gating}};
  names.gating = gating;
  return names;
}

}  // namespace tessera::models
