// SPDX-License-Identifier: Apache-2.0
// gpt-oss: attention sinks, windows in every second layer, biases, and experts with a bounded
// activation that files store transposed. Source: OpenAI 2025, "gpt-oss-120b & gpt-oss-20b model
// card".
#include <memory>
#include <string>
#include <vector>

#include "tessera/models/decoder_family.h"
#include "tessera/models/gguf_names.h"
#include "tessera/models/moe_hf.h"

namespace tessera::models {
namespace {

std::vector<PresetValue> published(std::int64_t experts) {
  return {{"moe.num_experts", experts},
          {"sliding_window", std::int64_t{128}},
          {"rope_theta", 150000.0},
          {"rope_scaling", std::string("yarn")},
          {"rope_factor", 32.0},
          {"rope_original_positions", std::int64_t{4096}},
          {"rope_truncate", false}};
}

const std::vector<Preset>& presets() {
  // clang-format off
  static const std::vector<Preset> all = {
      // layers, width, heads, key/value heads, feed-forward, positions, vocabulary; 0: the default
      nano("gpt-oss-nano", 4, 128, 4, 2, 96),
      {"gpt-oss-20b",  24, 2880, 64, 8, 2880, 131072, 201088, published(32),  64},
      {"gpt-oss-120b", 36, 2880, 64, 8, 2880, 131072, 201088, published(128), 64},
  };
  // clang-format on
  return all;
}

struct GptOssOptions final : DecoderOptions {
  GptOssOptions() {
    attention_bias = true;
    moe.num_experts = 8;
    moe.top_k = 4;
    moe.router.bias = true;
    use_pooled_balance(moe, 0.001);
  }
  double swiglu_limit = 7.0;

  [[nodiscard]] std::unique_ptr<FamilyOptions> clone() const override {
    return std::make_unique<GptOssOptions>(*this);
  }

  void describe(config::Fields& fields) override {
    describe_shape(fields, presets(), {});
    fields.field("swiglu_limit",
                 swiglu_limit,
                 {.text = "Bound of the values before the activation of experts.",
                  .min = 0,
                  .max = 1e6,
                  .above_min = true});
    describe_attention_bias(fields);
    describe_windows(fields);
    describe_rest(fields);
  }
};

bool slides(std::int64_t layer) {
  return layer % 2 == 0;
}

void specialize(const GptOssOptions& options, DecoderShape& shape) {
  shape.sinks = true;
  shape.layers = windows_by_layer(options, shape.num_layers, slides);
  if (!shape.experts) return;
  shape.experts->bias = true;
  shape.experts->activation.clamp = options.swiglu_limit;
}

const HfDecoder kHf = {.model_type = "gpt_oss",
                       .architecture = "GptOssForCausalLM",
                       .layers = 36,
                       .hidden = 2880,
                       .heads = 64,
                       .vocab = 201088,
                       .positions = 131072,
                       .ffn = 2880,
                       .kv_heads = 8,
                       .head_dim = 64,
                       .rms_norm_eps = 1e-5,
                       .rope_theta = 150000.0,
                       .has_experts = true};

void read(const HfConfig& keys, GptOssOptions& out) {
  read_layer_types(keys, out);
  out.sliding_window =
      keys.given("sliding_window") ? keys.count_or_null("sliding_window", 1e8) : 128;
  if (out.sliding_window == 0) out.layer_types.clear();
  if (out.sliding_window > 0 && out.layer_types.empty())
    out.layer_types = layer_types_of(out.num_layers.value(), slides);
  out.attention_bias = keys.flag("attention_bias", true);
  out.moe.num_experts = keys.count("num_local_experts", 128, 1e5);
  out.moe.top_k = keys.count(
      keys.given("num_experts_per_tok") ? "num_experts_per_tok" : "experts_per_token", 4, 1e5);
  out.swiglu_limit = keys.number("swiglu_limit", 7.0, 1e-30, 1e6);
  keys.refuse("swiglu_alpha", keys.number("swiglu_alpha", 1.702, 0, 1e6) == 1.702, "1.702");
  keys.refuse("hidden_act", out.activation == "silu", "\"silu\"");
  read_balance(keys, out.moe, 0.001);
}

void write(const GptOssOptions& options, json::Value& out) {
  MoeOptions::Router known;
  known.bias = true;
  require_plain_experts(options, kHf.architecture.c_str(), /*normalized=*/true);
  write_experts(options, kHf.architecture.c_str(), known, false, "num_local_experts", out);
  write_balance(options.moe, out);
  out["attention_bias"] = json::Value::boolean(options.attention_bias);
  out["sliding_window"] = window_to_hf(options);
  out["swiglu_limit"] = real_to_hf(options.swiglu_limit);
  out["swiglu_alpha"] = real_to_hf(1.702);
}

/// Files store experts as [E, C, 2 F], of which column 2 f is gate f and column 2 f + 1 is up f,
/// and as [E, F, C].
Composition compose(const ParamInfo& info) {
  const std::string theirs = "model." + info.name.substr(0, info.name.rfind('.'));
  const Shape& shape = info.shape;
  const bool bias = info.name.ends_with(".bias");
  if (theirs.ends_with(".mlp.experts.gate_up_proj")) {
    if (bias) {
      return Composition::of(theirs + "_bias", {shape[0], 2 * shape[2]})
          .viewed({shape[0], shape[2], 2})
          .permuted({0, 2, 1});
    }
    return Composition::of(theirs, {shape[0], shape[3], 2 * shape[2]})
        .viewed({shape[0], shape[3], shape[2], 2})
        .permuted({0, 3, 2, 1});
  }
  if (theirs.ends_with(".mlp.experts.down_proj")) {
    if (bias) return Composition::of(theirs + "_bias", shape);
    return Composition::of(theirs, {shape[0], shape[2], shape[1]}).permuted({0, 2, 1});
  }
  if (theirs.ends_with(".mlp.gate")) {
    return Composition::of(
        theirs.substr(0, theirs.rfind('.')) + (bias ? ".router.bias" : ".router.weight"), shape);
  }
  return compose_decoder(info);
}

TESSERA_MODEL("gpt_oss",
              DecoderFamilyOf<GptOssOptions>{.presets = presets(),
                                             .hf = kHf,
                                             .specialize = specialize,
                                             .read = read,
                                             .write = write,
                                             .weight_map = decoder_weights(compose),
                                             .adjustable = adjustable_with_experts()});

GgufNames::Values derived_gpt_oss_gguf(const json::Value& config) {
  const json::Value* const layers = config.find("num_hidden_layers");
  const json::Value* const window = config.find("sliding_window");
  if (window == nullptr || !window->is_number()) return {};
  json::Value types = json::Value::array();
  for (const std::string& type :
       layer_types_of(layers != nullptr ? layers->as_integer().value_or(36) : 36, slides))
    types.push_back(json::Value::string(type));
  return {{"layer_types", std::move(types)}};
}

TESSERA_GGUF_NAMES("gpt-oss", [] {
  GgufNames names = rotary_decoder_names("GptOssForCausalLM", "gpt_oss");
  names.keys.push_back({kGgufWindow, "sliding_window"});
  names.keys.push_back({"expert_feed_forward_length", "intermediate_size"});
  // Files of the converter have no width of an MLP, which the architecture does not have.
  for (GgufNames::Key& key : names.keys) {
    if (key.gguf == "feed_forward_length") key.required = false;
  }
  names.implied = {{"hidden_act", json::Value::string("silu")},
                   {"swiglu_limit", json::Value::number(7.0)},
                   {"swiglu_alpha", json::Value::number(1.702)}};
  names.derived = derived_gpt_oss_gguf;
  names.flags = {{"blk.0.attn_q.bias", "attention_bias"}};
  names.yarn = GgufNames::Yarn{.truncate = false, .log_multiplier = false};
  remove_module(names, "blk.*.ffn_norm");
  remove_dense_modules(names);
  const std::string layer = "model.layers.*", experts = layer + ".mlp.experts";
  set_module(names, "blk.*.post_attention_norm", layer + ".post_attention_layernorm");
  names.exact = {{"blk.*.attn_sinks.weight", layer + ".self_attn.sinks"}};
  add_experts(
      names,
      {.router = layer + ".mlp.router", .experts = experts, .count_key = "num_local_experts"});
  names.stacked.clear();
  using Parts = GgufNames::Parts;
  constexpr auto kTurns = GgufNames::PartRows::Turns;
  names.parts = {
      Parts{.theirs = experts + ".gate_up_proj",
            .files = {"blk.*.ffn_gate_exps.weight", "blk.*.ffn_up_exps.weight"},
            .rows = kTurns,
            .transposed = true},
      Parts{.theirs = experts + ".gate_up_proj_bias",
            .files = {"blk.*.ffn_gate_exps.bias", "blk.*.ffn_up_exps.bias"},
            .rows = kTurns},
      Parts{.theirs = experts + ".down_proj",
            .files = {"blk.*.ffn_down_exps.weight"},
            .transposed = true},
      Parts{.theirs = experts + ".down_proj_bias", .files = {"blk.*.ffn_down_exps.bias"}}};
  return names;
}());

}  // namespace
}  // namespace tessera::models
