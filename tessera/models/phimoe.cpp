// SPDX-License-Identifier: Apache-2.0
// PhiMoE (Phi 3.5): layer norms with biases, and a router that chooses two experts one after the
// other among those close to the best. Training uses the router of evaluation: the published one
// draws random numbers. Sources: Abdin et al. 2024, "Phi-3 technical report"; Liu et al. 2024,
// "GRIN: gradient-informed MoE".
#include <memory>
#include <string>
#include <vector>

#include "tessera/models/decoder_family.h"
#include "tessera/models/expert_weights.h"
#include "tessera/models/gguf_names.h"
#include "tessera/models/moe_hf.h"

namespace tessera::models {
namespace {

const std::vector<Preset>& presets() {
  // clang-format off
  static const std::vector<Preset> all = {
      // layers, width, heads, key/value heads, feed-forward, positions, vocabulary; 0: the default
      nano("phimoe-nano", 4, 128, 4, 2, 176),
      {"phi-3.5-moe", 32, 4096, 32, 8, 6400, 4096, 32064, {{"attention_bias", true}, {"lm_head_bias", true}, {"moe.num_experts", std::int64_t{16}}}},
  };
  // clang-format on
  return all;
}

struct PhimoeOptions final : DecoderOptions {
  PhimoeOptions() {
    moe.num_experts = 8;
    moe.router.score = "sparse_mixer";
    moe.router.normalize = false;
    use_pooled_balance(moe, 0.001);
  }
  bool lm_head_bias = false;
  double rope_short_mscale = 1.0, rope_long_mscale = 1.0;

  [[nodiscard]] std::unique_ptr<FamilyOptions> clone() const override {
    return std::make_unique<PhimoeOptions>(*this);
  }

  void describe(config::Fields& fields) override {
    describe_shape(fields, presets(), {});
    fields.field("lm_head_bias", lm_head_bias, {.text = "Whether the head has a bias."});
    describe_factor(
        fields,
        "rope_short_mscale",
        rope_short_mscale,
        "Factor of sines and cosines with rope_scaling longrope, if rope_length is at most "
        "rope_original_positions.");
    describe_factor(
        fields, "rope_long_mscale", rope_long_mscale, "The same for a larger rope_length.");
    describe_attention_bias(fields);
    describe_windows(fields);
    describe_rest(fields);
  }
};

void specialize(const PhimoeOptions& options, DecoderShape& shape) {
  shape.layer_norms = shape.norm_bias = true;
  shape.head_bias = options.lm_head_bias;
  shape.layers = windows_by_layer(options, shape.num_layers, [](std::int64_t) { return true; });
  if (options.rope_scaling != "longrope") return;
  shape.rotation.scaling.attention_factor =
      options.rope_length.value_or(0) > options.rope_original_positions ? options.rope_long_mscale
                                                                        : options.rope_short_mscale;
}

const HfDecoder kHf = {.model_type = "phimoe",
                       .architecture = "PhimoeForCausalLM",
                       .vocab = 32064,
                       .positions = 131072,
                       .ffn = 6400,
                       .kv_heads = 8,
                       .rms_norm_eps = 1e-5,
                       .rope_theta = 1e6,
                       .has_attention_bias = true,
                       .has_experts = true};

void read(const HfConfig& keys, PhimoeOptions& out) {
  out.sliding_window = keys.count_or_null("sliding_window", 1e8);
  out.lm_head_bias = keys.flag("lm_head_bias", false);
  out.moe.num_experts = keys.count("num_local_experts", 16, 1e5);
  out.moe.top_k = keys.count("num_experts_per_tok", 2, 1e5);
  out.moe.router.mixer_eps = keys.number("router_jitter_noise", 0.01, 0, 1);
  refuse_jitter(keys, "input_jitter_noise");
  read_balance(keys, out.moe, 0.001);
  if (out.rope_scaling != "longrope") return;
  for (const char* const name : {"rope_parameters", "rope_scaling"}) {
    if (keys.empty(name)) continue;
    const HfConfig rope(*keys.find(name));
    out.rope_short_mscale = rope.number("short_mscale", 1.0, 1e-30, 1e6);
    out.rope_long_mscale = rope.number("long_mscale", 1.0, 1e-30, 1e6);
  }
}

void write(const PhimoeOptions& options, json::Value& out) {
  MoeOptions::Router known;
  known.score = "sparse_mixer";
  require_plain_experts(options, kHf.architecture.c_str(), /*normalized=*/false);
  write_experts(options, kHf.architecture.c_str(), known, false, "num_local_experts", out);
  write_balance(options.moe, out);
  out["router_jitter_noise"] = real_to_hf(options.moe.router.mixer_eps);
  out["input_jitter_noise"] = real_to_hf(0.0);
  out["lm_head_bias"] = json::Value::boolean(options.lm_head_bias);
  out["sliding_window"] = window_to_hf(options);
  if (options.rope_scaling != "longrope") return;
  for (const char* const name : {"rope_parameters", "rope_scaling"}) {
    json::Value* const rope = out.find(name);
    if (rope == nullptr || !rope->is_object()) continue;
    (*rope)["short_mscale"] = real_to_hf(options.rope_short_mscale);
    (*rope)["long_mscale"] = real_to_hf(options.rope_long_mscale);
  }
}

Composition compose(const ParamInfo& info) {
  static const ExpertNames names = {.router = "block_sparse_moe.gate",
                                    .experts = "block_sparse_moe.experts",
                                    .gate = "w1",
                                    .up = "w3",
                                    .down = "w2"};
  return is_of_experts(info) ? compose_experts(info, "model.", names) : compose_decoder(info);
}

TESSERA_MODEL("phimoe",
              DecoderFamilyOf<PhimoeOptions>{.presets = presets(),
                                             .hf = kHf,
                                             .specialize = specialize,
                                             .read = read,
                                             .write = write,
                                             .weight_map = decoder_weights(compose),
                                             .adjustable = adjustable_with_experts()});

TESSERA_GGUF_NAMES("phimoe", [] {
  GgufNames names = rotary_decoder_names("PhimoeForCausalLM", "phimoe");
  names.keys.push_back({kGgufWindow, "sliding_window", false, false, json::Value()});
  names.implied.emplace_back("router_jitter_noise", json::Value::number(0.01));
  names.flags = {{"blk.0.attn_q.bias", "attention_bias"}, {"output.bias", "lm_head_bias"}};
  names.unread = {"rope.scaling.original_context_length"};
  names.long_rope = GgufNames::LongRope{.mscale = true};
  remove_dense_modules(names);
  const std::string module = "model.layers.*.block_sparse_moe";
  add_experts(names,
              {.router = module + ".gate",
               .experts = module + ".experts",
               .gate = "w1",
               .up = "w3",
               .down = "w2",
               .count_key = "num_local_experts"});
  return names;
}());

}  // namespace
}  // namespace tessera::models
