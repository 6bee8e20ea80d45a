// SPDX-License-Identifier: Apache-2.0
// DBRX: layer norms without biases, a bound of queries, keys and values, and experts that files
// store as rows of one matrix. Source: Databricks 2024, "Introducing DBRX".
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/models/decoder_family.h"
#include "tessera/models/gguf_names.h"
#include "tessera/models/moe_hf.h"

namespace tessera::models {
namespace {

const std::vector<Preset>& presets() {
  // clang-format off
  static const std::vector<Preset> all = {
      // layers, width, heads, key/value heads, feed-forward, positions, vocabulary; 0: the default
      nano("dbrx-nano", 4, 128, 4, 2, 176),
      {"dbrx", 40, 6144, 48, 8, 10752, 32768, 100352, {{"rope_theta", 500000.0}, {"qkv_clip", 8.0}, {"moe.num_experts", std::int64_t{16}}, {"moe.top_k", std::int64_t{4}}, {"moe.losses.balance", 0.05}}},
  };
  // clang-format on
  return all;
}

struct DbrxOptions final : DecoderOptions {
  DbrxOptions() {
    moe.num_experts = 8;
    use_pooled_balance(moe, 0.01);
  }
  double qkv_clip = 0.0;

  [[nodiscard]] std::unique_ptr<FamilyOptions> clone() const override {
    return std::make_unique<DbrxOptions>(*this);
  }

  void describe(config::Fields& fields) override {
    describe_shape(fields, presets(), {});
    fields.field("qkv_clip",
                 qkv_clip,
                 {.text = "Bound of the magnitude of queries, keys and values; 0: none.",
                  .min = 0,
                  .max = 1e6});
    describe_rest(fields);
  }
};

const HfDecoder kHf = {.model_type = "dbrx",
                       .architecture = "DbrxForCausalLM",
                       .layers = 24,
                       .hidden = 2048,
                       .heads = 16,
                       .rms_norm_eps = 1e-5,
                       .has_experts = true};

/// Their keys and those that other families have for the same.
const std::pair<const char*, const char*> kSizes[] = {{"d_model", "hidden_size"},
                                                      {"n_heads", "num_attention_heads"},
                                                      {"n_layers", "num_hidden_layers"},
                                                      {"max_seq_len", "max_position_embeddings"}};

/// A section of config.json, or an empty one.
json::Value section_of(const json::Value& config, const char* key) {
  const json::Value* const found = config.find(key);
  return found != nullptr && found->is_object() ? *found : json::Value::object();
}

DbrxOptions from_hf(const json::Value& hf_config) {
  const HfConfig given(hf_config);
  const json::Value attention = section_of(hf_config, "attn_config"),
                    experts = section_of(hf_config, "ffn_config");
  const HfConfig attn(attention), ffn(experts);
  json::Value common = hf_config;
  for (const auto& [theirs, key] : kSizes) {
    if (const json::Value* const value = hf_config.find(theirs)) common[key] = *value;
  }
  common["num_key_value_heads"] = json::Value::integer(attn.count("kv_n_heads", 1, 1e6));
  common["intermediate_size"] = json::Value::integer(ffn.count("ffn_hidden_size", 3584, 1e7));
  common["attention_dropout"] = json::Value::number(attn.number("attn_pdrop", 0, 0, kMaxDropout));
  if (given.empty("rope_parameters") && attn.given("rope_theta"))
    common["rope_theta"] = *attn.find("rope_theta");
  const json::Value* const act = ffn.find("ffn_act_fn");
  const json::Value* const name = act != nullptr && act->is_object() ? act->find("name") : nullptr;
  common["hidden_act"] = name != nullptr ? *name : json::Value::string("silu");
  given.refuse("resid_pdrop", given.number("resid_pdrop", 0, 0, 1) == 0, "0");
  given.refuse("emb_pdrop", given.number("emb_pdrop", 0, 0, 1) == 0, "0");
  refuse_jitter(ffn, "moe_jitter_eps");

  DbrxOptions out;
  read_decoder(HfConfig(common), kHf, out);
  out.rms_norm_eps = 1e-5;
  out.qkv_clip = attn.number_or_none("clip_qkv", 0, 1e6).value_or(0.0);
  out.moe.num_experts = ffn.count("moe_num_experts", 4, 1e5);
  out.moe.top_k = ffn.count("moe_top_k", 1, 1e5);
  // The order of the norm by which weights are divided; null: they are not.
  const bool absent = !ffn.given("moe_normalize_expert_weights");
  const auto order = ffn.number_or_none("moe_normalize_expert_weights", 0, 1e6);
  ffn.refuse("moe_normalize_expert_weights", absent || !order || *order == 1.0, "1.0 or null");
  out.moe.router.normalize = absent || order.has_value();
  const bool counts = given.flag("output_router_logits", false);
  use_pooled_balance(out.moe, counts ? ffn.number("moe_loss_weight", 0.01, 0, 1e3) : 0.0);
  return out;
}

json::Value to_hf(const DbrxOptions& options) {
  require_plain_experts(
      options, kHf.architecture.c_str(), /*normalized=*/options.moe.router.normalize);
  TESSERA_REQUIRE(
      !options.head_dim && options.rms_norm_eps == 1e-5,
      Unsupported,
      "Hugging Face's DbrxForCausalLM has heads of hidden_size / num_heads channels and "
      "norms with epsilon 1e-5",
      "leave model.head_dim and model.rms_norm_eps at their defaults");
  json::Value out = decoder_to_hf(options, kHf);
  json::Value attn = json::Value::object(), ffn = json::Value::object();
  write_experts(options, kHf.architecture.c_str(), {}, false, "moe_num_experts", ffn);
  std::erase_if(ffn.members(), [](const auto& one) { return one.first == "num_experts_per_tok"; });
  ffn["moe_top_k"] = json::Value::integer(options.moe.top_k);
  ffn["ffn_hidden_size"] = json::Value::integer(options.ffn_hidden_size.value());
  ffn["ffn_act_fn"] = json::Value::object({{"name", *out.find("hidden_act")}});
  ffn["moe_loss_weight"] = real_to_hf(options.moe.losses.balance);
  ffn["moe_jitter_eps"] = json::Value();
  ffn["moe_normalize_expert_weights"] =
      options.moe.router.normalize ? real_to_hf(1.0) : json::Value();
  attn["kv_n_heads"] = *out.find("num_key_value_heads");
  attn["clip_qkv"] = options.qkv_clip > 0 ? real_to_hf(options.qkv_clip) : json::Value();
  attn["rope_theta"] = real_to_hf(options.rope_theta);
  attn["attn_pdrop"] = real_to_hf(options.attention_dropout);
  for (const auto& [theirs, key] : kSizes)
    out[theirs] = *out.find(key);
  for (const char* const key : {"hidden_size",
                                "num_attention_heads",
                                "num_hidden_layers",
                                "intermediate_size",
                                "hidden_act",
                                "rms_norm_eps",
                                "attention_dropout"})
    std::erase_if(out.members(), [&](const auto& one) { return one.first == key; });
  out["attn_config"] = std::move(attn);
  out["ffn_config"] = std::move(ffn);
  out["resid_pdrop"] = real_to_hf(0.0);
  out["emb_pdrop"] = real_to_hf(0.0);
  out["output_router_logits"] = json::Value::boolean(options.moe.losses.balance > 0);
  return out;
}

/// Files have the rows of all experts one after the other: [E F, C], also of the output projection.
Composition compose(const ParamInfo& info) {
  const Shape& shape = info.shape;
  static const std::map<std::string, std::string> names = {
      {"embed_tokens.weight", "transformer.wte.weight"},
      {"norm.weight", "transformer.norm_f.weight"},
      {"input_layernorm.weight", "norm_attn_norm.norm_1.weight"},
      {"post_attention_layernorm.weight", "norm_attn_norm.norm_2.weight"},
      {"self_attn.o_proj.weight", "norm_attn_norm.attn.out_proj.weight"},
      {"mlp.gate.weight", "ffn.router.layer.weight"}};
  if (!info.name.starts_with("layers.")) {
    const auto found = names.find(info.name);
    return Composition::of(found == names.end() ? info.name : found->second, shape);
  }
  const std::size_t dot = info.name.find('.', std::string("layers.").size());
  const std::string module = info.name.substr(dot + 1),
                    layer = "transformer.blocks." + info.name.substr(7, dot - 7) + ".";
  if (const auto found = names.find(module); found != names.end())
    return Composition::of(layer + found->second, shape);
  if (module == "self_attn.qkv_proj.weight")
    return compose_fused_qkv(info, layer + "norm_attn_norm.attn.Wqkv.weight");
  const std::string experts = layer + "ffn.experts.mlp.";
  if (module == "mlp.experts.gate_up_proj.weight") {
    const std::int64_t E = shape[0], F = shape[2], C = shape[3];
    return Composition::concat({Composition::of(experts + "w1", {E * F, C}).viewed({E, 1, F, C}),
                                Composition::of(experts + "v1", {E * F, C}).viewed({E, 1, F, C})},
                               1);
  }
  if (module == "mlp.experts.down_proj.weight") {
    const std::int64_t E = shape[0], C = shape[1], F = shape[2];
    return Composition::of(experts + "w2", {E * F, C}).viewed({E, F, C}).permuted({0, 2, 1});
  }
  return compose_decoder(info);
}

Resolved resolve(const DbrxOptions& options,
                 std::int64_t tokenizer_size,
                 std::optional<std::int64_t> sequence_length,
                 config::Problems& problems,
                 const config::Origins& origins) {
  const auto specialize = [&](DecoderShape& shape) {
    shape.layer_norms = true;
    shape.qkv_clip = options.qkv_clip;
  };
  return resolve_decoder({kHf.model_type, presets(), specialize},
                         options,
                         tokenizer_size,
                         sequence_length,
                         problems,
                         origins);
}

TESSERA_MODEL("dbrx",
              FamilyOf<DbrxOptions>{
                  .presets = presets(),
                  .adjustable = adjustable_with_experts(),
                  .resolve = resolve,
                  .from_hf = from_hf,
                  .to_hf = to_hf,
                  .weight_map = {.compose = compose,
                                 .base = "transformer.",
                                 .ties = {{"lm_head.weight", "transformer.wte.weight"}},
                                 .is_buffer = is_rotary_buffer,
                                 .anchor = "transformer.wte.weight"}});

TESSERA_GGUF_NAMES("dbrx", [] {
  const std::string layer = "transformer.blocks.*.", ffn = layer + "ffn.",
                    attention = layer + "norm_attn_norm.";
  GgufNames names;
  names.architecture = kHf.architecture;
  names.model_type = kHf.model_type;
  names.keys = {{"block_count", "n_layers"},
                {"context_length", "max_seq_len"},
                {"embedding_length", "d_model"},
                {"feed_forward_length", "ffn_config.ffn_hidden_size"},
                {"attention.head_count", "n_heads"},
                {"attention.head_count_kv", "attn_config.kv_n_heads"},
                {"attention.clamp_kqv", "attn_config.clip_qkv", true},
                {"rope.freq_base", "attn_config.rope_theta", true},
                {"expert_count", "ffn_config.moe_num_experts"},
                {"expert_used_count", "ffn_config.moe_top_k"}};
  names.real_constants = {{"attention.layer_norm_epsilon", 1e-5}};
  names.implied = {
      {"ffn_config.ffn_act_fn", json::Value::object({{"name", json::Value::string("silu")}})},
      {"ffn_config.moe_normalize_expert_weights", json::Value::number(1.0)}};
  names.modules = {{"token_embd", "transformer.wte"},
                   {"output_norm", "transformer.norm_f"},
                   {"output", "lm_head"},
                   {"blk.*.attn_norm", attention + "norm_1"},
                   {"blk.*.attn_qkv", attention + "attn.Wqkv"},
                   {"blk.*.attn_output", attention + "attn.out_proj"},
                   {"blk.*.attn_output_norm", attention + "norm_2"},
                   {"blk.*.ffn_gate_inp", ffn + "router.layer"}};
  names.unread = {"expert_gating_func"};
  names.rotary = true;
  const auto experts = [&](const char* file, const char* theirs, bool transposed) {
    names.parts.push_back({.theirs = ffn + "experts.mlp." + theirs,
                           .files = {std::string("blk.*.") + file + ".weight"},
                           .transposed = transposed,
                           .flat = true});
  };
  experts("ffn_gate_exps", "w1", false);
  experts("ffn_up_exps", "v1", false);
  experts("ffn_down_exps", "w2", true);
  return names;
}());

}  // namespace
}  // namespace tessera::models
