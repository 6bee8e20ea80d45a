// SPDX-License-Identifier: Apache-2.0
// Qwen 3 with experts: many narrow experts in all or some layers. Source: Yang et al. 2025, "Qwen3
// technical report".
#include <memory>
#include <string>
#include <vector>

#include "tessera/models/decoder_family.h"
#include "tessera/models/gguf_names.h"
#include "tessera/models/megatron_names.h"
#include "tessera/models/moe_hf.h"

namespace tessera::models {
namespace {

std::vector<PresetValue> published(std::int64_t experts, std::int64_t width) {
  return {{"rope_theta", 1e6},
          {"rms_norm_eps", 1e-6},
          {"moe.num_experts", experts},
          {"moe.top_k", std::int64_t{8}},
          {"moe.ffn_hidden_size", width}};
}

const std::vector<Preset>& presets() {
  // clang-format off
  static const std::vector<Preset> all = {
      // layers, width, heads, key/value heads, feed-forward, positions, vocabulary; 0: the default
      nano("qwen3-moe-nano", 4, 128, 4, 2, 352, 32),
      {"qwen3-30b-a3b",   48, 2048, 32, 4, 6144,  40960, 151936, published(128, 768),  128},
      {"qwen3-235b-a22b", 94, 4096, 64, 4, 12288, 40960, 151936, published(128, 1536), 128},
  };
  // clang-format on
  return all;
}

struct Qwen3MoeOptions final : DecoderOptions {
  Qwen3MoeOptions() {
    moe.num_experts = 8;
    moe.ffn_hidden_size = 96;
    use_pooled_balance(moe, 0.001);
  }
  [[nodiscard]] std::unique_ptr<FamilyOptions> clone() const override {
    return std::make_unique<Qwen3MoeOptions>(*this);
  }

  void describe(config::Fields& fields) override {
    describe_shape(fields, presets(), {});
    describe_attention_bias(fields);
    describe_windows(fields);
    describe_rest(fields);
  }
};

void specialize(const Qwen3MoeOptions& options, DecoderShape& shape) {
  shape.qk_norm = QkNorm::PerHead;
  shape.layers = windows_by_layer(options, shape.num_layers, [](std::int64_t) { return false; });
}

const HfDecoder kHf = {.model_type = "qwen3_moe",
                       .architecture = "Qwen3MoeForCausalLM",
                       .layers = 24,
                       .hidden = 2048,
                       .vocab = 151936,
                       .positions = 32768,
                       .ffn = 6144,
                       .kv_heads = 4,
                       .has_attention_bias = true,
                       .has_experts = true};

void read(const HfConfig& keys, Qwen3MoeOptions& out) {
  read_late_windows(keys, out);
  out.moe.num_experts =
      keys.count(keys.given("num_experts") ? "num_experts" : "num_local_experts", 128, 1e5);
  out.moe.top_k = keys.count("num_experts_per_tok", 8, 1e5);
  out.moe.ffn_hidden_size = keys.count("moe_intermediate_size", 768, 1e7);
  out.moe.router.normalize = keys.flag("norm_topk_prob", false);
  read_sparse_step(keys, out);
  read_balance(keys, out.moe, 0.001);
}

void write(const Qwen3MoeOptions& options, json::Value& out) {
  late_windows_to_hf(options, out);
  write_experts(options, kHf.architecture.c_str(), {}, false, "num_experts", out);
  out["moe_intermediate_size"] = json::Value::integer(expert_width(options));
  out["norm_topk_prob"] = json::Value::boolean(options.moe.router.normalize);
  write_sparse_step(options, out);
  write_balance(options.moe, out);
}

TESSERA_MODEL("qwen3_moe",
              DecoderFamilyOf<Qwen3MoeOptions>{.presets = presets(),
                                               .hf = kHf,
                                               .specialize = specialize,
                                               .read = read,
                                               .write = write,
                                               .adjustable = adjustable_with_experts()});

TESSERA_MEGATRON_NAMES("qwen3_moe",
                       {.kind = {.qk_norm = true, .experts = true},
                        .architecture = kHf.architecture,
                        .model_type = kHf.model_type});

TESSERA_GGUF_NAMES("qwen3moe", [] {
  GgufNames names = rotary_decoder_names("Qwen3MoeForCausalLM", "qwen3_moe");
  names.keys.push_back({"expert_feed_forward_length", "moe_intermediate_size"});
  names.implied = {{"hidden_act", json::Value::string("silu")},
                   {"use_sliding_window", json::Value::boolean(false)},
                   {"attention_bias", json::Value::boolean(false)},
                   {"norm_topk_prob", json::Value::boolean(true)},
                   {"decoder_sparse_step", json::Value::integer(1)},
                   {"mlp_only_layers", json::Value::array()}};
  require_key(names, "attention.key_length");
  remove_dense_modules(names);
  set_module(names, "blk.*.attn_q_norm", "model.layers.*.self_attn.q_norm");
  set_module(names, "blk.*.attn_k_norm", "model.layers.*.self_attn.k_norm");
  add_experts(names,
              {.router = "model.layers.*.mlp.gate", .experts = "model.layers.*.mlp.experts"});
  return names;
}());

}  // namespace
}  // namespace tessera::models
