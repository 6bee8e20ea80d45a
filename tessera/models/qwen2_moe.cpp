// SPDX-License-Identifier: Apache-2.0
// Qwen 2 with experts, and with shared experts that a gate scales for each token. Source: Yang et
// al. 2024, "Qwen2 technical report".
#include <memory>
#include <string>
#include <vector>

#include "tessera/models/decoder_family.h"
#include "tessera/models/gguf_names.h"
#include "tessera/models/moe_hf.h"

namespace tessera::models {
namespace {

std::vector<PresetValue> published(std::int64_t experts,
                                   std::int64_t top_k,
                                   std::int64_t width,
                                   std::int64_t shared) {
  return {{"rope_theta", 1e6},
          {"rms_norm_eps", 1e-6},
          {"moe.num_experts", experts},
          {"moe.top_k", top_k},
          {"moe.ffn_hidden_size", width},
          {"moe.shared_ffn_hidden_size", shared}};
}

const std::vector<Preset>& presets() {
  // clang-format off
  static const std::vector<Preset> all = {
      // layers, width, heads, key/value heads, feed-forward, positions, vocabulary; 0: the default
      nano("qwen2-moe-nano", 4, 128, 4, 2, 352),
      {"qwen1.5-moe-a2.7b", 24, 2048, 16, 16, 5632,  8192,   151936, published(60, 4, 1408, 5632)},
      {"qwen2-57b-a14b",    28, 3584, 28, 4,  18944, 131072, 151936, published(64, 8, 2560, 20480)},
  };
  // clang-format on
  return all;
}

struct Qwen2MoeOptions final : DecoderOptions {
  Qwen2MoeOptions() {
    attention_bias = true;
    moe.num_experts = 8;
    moe.ffn_hidden_size = 96;
    moe.shared_ffn_hidden_size = 176;
    moe.shared_gate = true;
    moe.router.normalize = false;
    use_pooled_balance(moe, 0.001);
  }
  [[nodiscard]] std::unique_ptr<FamilyOptions> clone() const override {
    return std::make_unique<Qwen2MoeOptions>(*this);
  }

  void describe(config::Fields& fields) override {
    describe_shape(fields, presets(), {});
    describe_attention_bias(fields,
                            "Whether the projections to queries, keys and values have biases.");
    describe_windows(fields);
    describe_rest(fields);
  }
};

void specialize(const Qwen2MoeOptions& options, DecoderShape& shape) {
  shape.output_bias = false;
  shape.layers = windows_by_layer(options, shape.num_layers, [](std::int64_t) { return false; });
}

const HfDecoder kHf = {.model_type = "qwen2_moe",
                       .architecture = "Qwen2MoeForCausalLM",
                       .layers = 24,
                       .hidden = 2048,
                       .heads = 16,
                       .vocab = 151936,
                       .positions = 32768,
                       .ffn = 5632,
                       .kv_heads = 16,
                       .has_experts = true};

void read(const HfConfig& keys, Qwen2MoeOptions& out) {
  read_layer_types(keys, out);
  read_late_windows(keys, out);
  out.attention_bias = keys.flag("qkv_bias", true);
  out.moe.num_experts =
      keys.count(keys.given("num_experts") ? "num_experts" : "num_local_experts", 60, 1e5);
  out.moe.top_k = keys.count("num_experts_per_tok", 4, 1e5);
  out.moe.ffn_hidden_size = keys.count("moe_intermediate_size", 1408, 1e7);
  out.moe.shared_ffn_hidden_size = keys.count("shared_expert_intermediate_size", 5632, 1e7);
  out.moe.router.normalize = keys.flag("norm_topk_prob", false);
  read_sparse_step(keys, out);
  read_balance(keys, out.moe, 0.001);
}

void write(const Qwen2MoeOptions& options, json::Value& out) {
  late_windows_to_hf(options, out);
  const MoeOptions& moe = options.moe;
  TESSERA_REQUIRE(moe.shared_gate && moe.shared_width(expert_width(options)) > 0,
                  Unsupported,
                  "Hugging Face's Qwen2MoeForCausalLM has shared experts with a gate",
                  "choose another family in model.family for experts without them");
  write_experts(options, kHf.architecture.c_str(), {}, true, "num_experts", out);
  out["qkv_bias"] = json::Value::boolean(options.attention_bias);
  out["moe_intermediate_size"] = json::Value::integer(expert_width(options));
  out["shared_expert_intermediate_size"] =
      json::Value::integer(moe.shared_width(expert_width(options)));
  out["norm_topk_prob"] = json::Value::boolean(moe.router.normalize);
  write_sparse_step(options, out);
  write_balance(moe, out);
}

TESSERA_MODEL("qwen2_moe",
              DecoderFamilyOf<Qwen2MoeOptions>{.presets = presets(),
                                               .hf = kHf,
                                               .specialize = specialize,
                                               .read = read,
                                               .write = write,
                                               .adjustable = adjustable_with_experts()});

TESSERA_GGUF_NAMES("qwen2moe", [] {
  GgufNames names = rotary_decoder_names("Qwen2MoeForCausalLM", "qwen2_moe");
  names.keys.push_back({"expert_feed_forward_length", "moe_intermediate_size"});
  names.keys.push_back({"expert_shared_feed_forward_length", "shared_expert_intermediate_size"});
  names.implied = {{"hidden_act", json::Value::string("silu")},
                   {"use_sliding_window", json::Value::boolean(false)},
                   {"norm_topk_prob", json::Value::boolean(false)},
                   {"decoder_sparse_step", json::Value::integer(1)},
                   {"mlp_only_layers", json::Value::array()}};
  names.flags = {{"blk.0.attn_q.bias", "qkv_bias"}};
  remove_dense_modules(names);
  const std::string mlp = "model.layers.*.mlp";
  set_module(names, "blk.*.ffn_gate_inp_shexp", mlp + ".shared_expert_gate");
  set_module(names, "blk.*.ffn_gate_shexp", mlp + ".shared_expert.gate_proj");
  set_module(names, "blk.*.ffn_up_shexp", mlp + ".shared_expert.up_proj");
  set_module(names, "blk.*.ffn_down_shexp", mlp + ".shared_expert.down_proj");
  names.rows_of_one = {"blk.*.ffn_gate_inp_shexp"};
  add_experts(names, {.router = mlp + ".gate", .experts = mlp + ".experts"});
  return names;
}());

}  // namespace
}  // namespace tessera::models
