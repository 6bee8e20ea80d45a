// SPDX-License-Identifier: Apache-2.0
// OLMoE: narrow experts in every layer, norms over all channels of queries and of keys, and a bound
// of queries, keys and values. Source: Muennighoff et al. 2024, "OLMoE: open mixture-of-experts
// language models".
#include <memory>
#include <string>
#include <vector>

#include "tessera/models/decoder_family.h"
#include "tessera/models/gguf_names.h"
#include "tessera/models/moe_hf.h"

namespace tessera::models {
namespace {

const std::vector<Preset>& presets() {
  // clang-format off
  static const std::vector<Preset> all = {
      // layers, width, heads, key/value heads, feed-forward, positions, vocabulary; 0: the default
      nano("olmoe-nano", 4, 128, 4, 0, 96),
      {"olmoe-1b-7b", 16, 2048, 16, 0, 1024, 4096, 50304, {{"moe.num_experts", std::int64_t{64}}, {"moe.top_k", std::int64_t{8}}}},
  };
  // clang-format on
  return all;
}

struct OlmoeOptions final : DecoderOptions {
  OlmoeOptions() {
    moe.num_experts = 8;
    moe.router.normalize = false;
    use_pooled_balance(moe, 0.01);
  }
  double qkv_clip = 0.0;

  [[nodiscard]] std::unique_ptr<FamilyOptions> clone() const override {
    return std::make_unique<OlmoeOptions>(*this);
  }

  void describe(config::Fields& fields) override {
    describe_shape(fields, presets(), {});
    describe_attention_bias(fields);
    fields.field("qkv_clip",
                 qkv_clip,
                 {.text = "Bound of the magnitude of queries, keys and values; 0: none.",
                  .min = 0,
                  .max = 1e6});
    describe_rest(fields);
  }
};

void specialize(const OlmoeOptions& options, DecoderShape& shape) {
  shape.qk_norm = QkNorm::AllHeads;
  shape.qkv_clip = options.qkv_clip;
}

const HfDecoder kHf = {.model_type = "olmoe",
                       .architecture = "OlmoeForCausalLM",
                       .layers = 16,
                       .hidden = 2048,
                       .heads = 16,
                       .vocab = 50304,
                       .positions = 4096,
                       .ffn = 2048,
                       .rms_norm_eps = 1e-5,
                       .has_attention_bias = true,
                       .has_experts = true};

void read(const HfConfig& keys, OlmoeOptions& out) {
  out.qkv_clip = keys.number_or_none("clip_qkv", 0, 1e6).value_or(0.0);
  out.moe.num_experts = keys.count("num_experts", 64, 1e5);
  out.moe.top_k = keys.count("num_experts_per_tok", 8, 1e5);
  out.moe.router.normalize = keys.flag("norm_topk_prob", false);
  read_balance(keys, out.moe, 0.01);
}

void write(const OlmoeOptions& options, json::Value& out) {
  require_plain_experts(
      options, kHf.architecture.c_str(), /*normalized=*/options.moe.router.normalize);
  write_experts(options, kHf.architecture.c_str(), {}, false, "num_experts", out);
  out["clip_qkv"] = options.qkv_clip > 0 ? real_to_hf(options.qkv_clip) : json::Value();
  out["norm_topk_prob"] = json::Value::boolean(options.moe.router.normalize);
  write_balance(options.moe, out);
}

TESSERA_MODEL("olmoe",
              DecoderFamilyOf<OlmoeOptions>{.presets = presets(),
                                            .hf = kHf,
                                            .specialize = specialize,
                                            .read = read,
                                            .write = write,
                                            .adjustable = adjustable_with_experts()});

TESSERA_GGUF_NAMES("olmoe", [] {
  GgufNames names = rotary_decoder_names("OlmoeForCausalLM", "olmoe");
  names.keys.push_back({"attention.clamp_kqv", "clip_qkv", /*real=*/true, /*required=*/false});
  names.implied.emplace_back("attention_bias", json::Value::boolean(false));
  names.implied.emplace_back("norm_topk_prob", json::Value::boolean(false));
  remove_dense_modules(names);
  set_module(names, "blk.*.attn_q_norm", "model.layers.*.self_attn.q_norm");
  set_module(names, "blk.*.attn_k_norm", "model.layers.*.self_attn.k_norm");
  add_experts(names,
              {.router = "model.layers.*.mlp.gate", .experts = "model.layers.*.mlp.experts"});
  return names;
}());

}  // namespace
}  // namespace tessera::models
