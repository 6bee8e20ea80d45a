// SPDX-License-Identifier: Apache-2.0
// The GPT-NeoX family (Pythia): rotary positions on a part of each head's channels, attention and
// MLP in parallel on the residual stream, an untied head. Sources: Black et al. 2022,
// "GPT-NeoX-20B"; Biderman et al. 2023, "Pythia".
#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/models/gguf_names.h"
#include "tessera/models/layer_norm_decoder.h"
#include "tessera/models/module_order.h"
#include "tessera/models/rotary_options.h"
#include "tessera/nn/functional.h"

namespace tessera::models {
namespace {

struct NeoxShape : LayerNormShape {
  NeoxShape() { tie_embeddings = false; }
  double rotary_fraction = 0.25;
  Rotation rotation;
  bool parallel_residual = true, attention_bias = true;
  std::string activation = "gelu";

  /// Number of rotated channels per head, truncated as in Hugging Face.
  [[nodiscard]] std::int64_t rotary_channels() const {
    return static_cast<std::int64_t>(static_cast<double>(hidden_size / num_heads) *
                                     rotary_fraction);
  }
};

NormSpec norm_of(const NeoxShape& shape) {
  return {NormKind::LayerNorm, shape.layer_norm_eps};
}

TrunkOutput output_of(const NeoxShape& shape) {
  return {
      .hidden_size = shape.hidden_size,
      .norm = norm_of(shape),
      .norm_name = "final_layer_norm",
      .vocabulary = {"embed_in.weight", shape.vocab_size, shape.tie_embeddings},
      .init_std = shape.init_std,
      .heads = {.token = HeadSpec{.dropout = shape.classifier_dropout,
                                  .output = "classifier",
                                  .output_bias = "classifier.bias"}},
  };
}

LayerSpec layer_of(const NeoxShape& shape) {
  const Init init = Init::normal(shape.init_std);
  return {
      .attention = {.hidden_size = shape.hidden_size,
                    .num_heads = shape.num_heads,
                    .num_kv_heads = shape.num_heads,
                    .head_dim = shape.hidden_size / shape.num_heads,
                    .qkv_name = "attention.query_key_value",
                    .output_name = "attention.dense",
                    .qkv_bias = shape.attention_bias,
                    .output_bias = shape.attention_bias,
                    .qkv_init = init,
                    .output_init = init,
                    .dropout = shape.attention_dropout,
                    .rotary_frequencies = shape.rotation.frequencies(shape.rotary_channels()),
                    .max_positions = shape.max_positions,
                    .rotary_factor = shape.rotation.factor()},
      .mlp = MlpSpec{.hidden_size = shape.hidden_size,
                     .ffn_hidden_size = shape.ffn_hidden_size,
                     .input_name = "mlp.dense_h_to_4h",
                     .output_name = "mlp.dense_4h_to_h",
                     .input_init = init,
                     .output_init = init,
                     .activation = shape.activation},
      .norm = norm_of(shape),
      .attention_norm_name = "input_layernorm",
      .mlp_norm_name = "post_attention_layernorm",
      .order = shape.parallel_residual ? ResidualOrder::Parallel : ResidualOrder::PreNorm,
      .residual_dropout = shape.dropout,
  };
}

class Embedding final : public nn::Block {
 public:
  explicit Embedding(const NeoxShape& shape) : shape_(shape) {}

  void declare(nn::Params& params) override { table_ = declare_table(params, output_of(shape_)); }

  [[nodiscard]] bool works_by_token() const override { return true; }

  nn::Outcome forward(nn::Flow /*in*/, const nn::Batch& batch, nn::StepContext& context) override {
    const at::Tensor x_BTC = nn::embedding(batch.tensor("input_ids"), *table_, context);
    return {.flow = {.diff = {nn::dropout(x_BTC, context.dropout("embedding", shape_.dropout))}}};
  }

 private:
  NeoxShape shape_;
  Param* table_ = nullptr;
};

Trunk trunk_of(const NeoxShape& shape) {
  Trunk trunk{.output = output_of(shape)};
  trunk.blocks.push_back({"embed_in", [shape] { return std::make_unique<Embedding>(shape); }});
  for (std::int64_t i = 0; i < shape.num_layers; ++i)
    trunk.blocks.push_back(block_of(fmt::format("layers.{}", i), layer_of(shape)));
  return trunk;
}

constexpr std::int64_t kPositions = 2048;

Preset published(const char* name,
                 std::int64_t layers,
                 std::int64_t hidden,
                 std::int64_t heads,
                 std::int64_t vocabulary,
                 std::vector<PresetValue> values = {}) {
  return {.name = name,
          .num_layers = layers,
          .hidden_size = hidden,
          .num_heads = heads,
          .max_positions = kPositions,
          .vocab_size = vocabulary,
          .values = std::move(values)};
}

const std::vector<Preset>& presets() {
  static const std::vector<Preset> all = {
      nano("pythia-nano", 4, 128, 4),
      published("pythia-14m", 6, 128, 4, 50304),
      published("pythia-31m", 6, 256, 8, 50304),
      published("pythia-70m", 6, 512, 8, 50304),
      published("pythia-160m", 12, 768, 12, 50304),
      published("pythia-410m", 24, 1024, 16, 50304),
      published("pythia-1b", 16, 2048, 8, 50304),
      published("pythia-1.4b", 24, 2048, 16, 50304),
      published("pythia-2.8b", 32, 2560, 32, 50304),
      published("pythia-6.9b", 32, 4096, 32, 50432),
      published("pythia-12b", 36, 5120, 40, 50688),
      published("gpt-neox-20b", 44, 6144, 64, 50432, {{"activation", "gelu_tanh"}}),
  };
  return all;
}

struct NeoxOptions final : LayerNormOptions, RotaryOptions {
  NeoxOptions() { tie_embeddings = false; }
  double rotary_fraction = 0.25;
  bool parallel_residual = true, attention_bias = true;
  std::string activation = "gelu";

  [[nodiscard]] std::unique_ptr<FamilyOptions> clone() const override {
    return std::make_unique<NeoxOptions>(*this);
  }

  void describe(config::Fields& fields) override {
    describe_decoder_sizes(fields, presets(), "pythia-nano if no size is given");
    fields.field("rotary_fraction",
                 rotary_fraction,
                 {.text = "Share of a head's channels that rotary positions rotate.",
                  .min = 0,
                  .max = 1,
                  .above_min = true});
    describe_rotary(fields);
    fields.field("parallel_residual",
                 parallel_residual,
                 {.text = "Whether attention and MLP of a layer read the same input (in parallel) "
                          "instead of one after the other."});
    fields.field("attention_bias",
                 attention_bias,
                 {.text = "Whether the projections of attention have biases."});
    describe_dropouts(fields);
    describe_classifier_dropout(fields, classifier_dropout, "0.1");
    describe_tie(fields);
    fields.field("activation",
                 activation,
                 {.text = "Activation function of the MLP.", .choices = ops::activation_names()});
    describe_layer_norm_eps(fields);
    describe_end(fields);
  }
};

NeoxShape possible_shape(NeoxShape shape) {
  const std::int64_t channels = shape.rotary_channels();
  if (channels < 2 || channels % 2 != 0) {
    shape.rotary_fraction = 1.0;
    shape.hidden_size = 2 * shape.num_heads;
  }
  shape.rotation = possible(std::move(shape.rotation), shape.rotary_channels());
  return shape;
}

void specialize(const NeoxOptions& options, NeoxShape& shape, Checks& checks) {
  shape.rotary_fraction = options.rotary_fraction;
  shape.parallel_residual = options.parallel_residual;
  shape.attention_bias = options.attention_bias;
  shape.activation = options.activation;
  const std::int64_t heads = std::max<std::int64_t>(shape.num_heads, 1);
  const std::int64_t turned = static_cast<std::int64_t>(
      static_cast<double>(shape.hidden_size / heads) * shape.rotary_fraction);
  checks.require(
      turned >= 2 && turned % 2 == 0,
      "model.rotary_fraction",
      fmt::format("{} of the {} channels of a head would be turned, and rotary positions "
                  "turn pairs of them",
                  turned,
                  shape.hidden_size / heads),
      "choose a rotary_fraction that gives an even number of channels");
  shape.rotation = rotation_of(options, turned, checks);
}

/// The rotary part of a config.json: `rope_parameters` since transformers 5, before that
/// `rotary_pct`, `rotary_emb_base` and `rope_scaling`.
void read_rotary_part(const HfConfig& keys, NeoxOptions& out) {
  out.rotary_fraction = keys.number("rotary_pct", 0.25, 1e-6, 1);
  out.rope_theta = keys.number("rotary_emb_base", 10000.0, 1, 1e12);
  for (const char* const key : {"rope_scaling", "rope_parameters"}) {
    if (keys.empty(key)) continue;
    out.rotary_fraction =
        HfConfig(*keys.find(key)).number("partial_rotary_factor", out.rotary_fraction, 1e-6, 1);
  }
  read_rotary(keys, *out.max_positions, out);
  out.max_positions = stretched_positions(out, *out.max_positions);
}

NeoxOptions from_hf(const json::Value& config) {
  const HfConfig keys(config);
  require_plain(keys, "gpt_neox");
  NeoxOptions out;
  out.num_layers = keys.count("num_hidden_layers", 44, 1e4);
  out.hidden_size = keys.count("hidden_size", 6144, 1e6);
  out.num_heads = keys.count("num_attention_heads", 64, 1e6);
  out.vocab_size = keys.count("vocab_size", 50432, 1e8);
  out.max_positions = keys.count("max_position_embeddings", kPositions, 1e8);
  out.ffn_hidden_size = keys.count("intermediate_size", 24576, 1e7);
  read_rotary_part(keys, out);
  out.parallel_residual = keys.flag("use_parallel_residual", true);
  out.attention_bias = keys.flag("attention_bias", true);
  out.dropout = keys.number("hidden_dropout", 0.0, 0, kMaxDropout);
  out.attention_dropout = keys.number("attention_dropout", 0.0, 0, kMaxDropout);
  out.classifier_dropout = keys.number_or_none("classifier_dropout", 0, kMaxDropout);
  out.tie_embeddings = keys.flag("tie_word_embeddings", false);
  out.activation = keys.activation("hidden_act", "gelu");
  out.layer_norm_eps = keys.number("layer_norm_eps", 1e-5, 1e-30, 1);
  out.init_std = keys.number("initializer_range", 0.02, 0, 100);
  return out;
}

json::Value to_hf(const NeoxOptions& options) {
  json::Value out = hf_begin(options, "GPTNeoXForCausalLM", "gpt_neox");
  out["hidden_act"] = json::Value::string(hf_activation(options.activation, "GPT-NeoX"));
  out["num_hidden_layers"] = json::Value::integer(options.num_layers.value());
  out["num_attention_heads"] = json::Value::integer(options.num_heads.value());
  out["intermediate_size"] = json::Value::integer(options.ffn_hidden_size.value());
  out["max_position_embeddings"] = json::Value::integer(options.max_positions.value());
  out["rotary_pct"] = real_to_hf(options.rotary_fraction);
  out["rotary_emb_base"] = real_to_hf(options.rope_theta);
  write_rotary(options, out);
  out["rope_parameters"]["partial_rotary_factor"] = real_to_hf(options.rotary_fraction);
  out["use_parallel_residual"] = json::Value::boolean(options.parallel_residual);
  out["attention_bias"] = json::Value::boolean(options.attention_bias);
  out["hidden_dropout"] = real_to_hf(options.dropout);
  if (options.classifier_dropout)
    out["classifier_dropout"] = real_to_hf(*options.classifier_dropout);
  out["layer_norm_eps"] = real_to_hf(options.layer_norm_eps);
  out["initializer_range"] = real_to_hf(options.init_std);
  return out;
}

/// Hugging Face's names are tessera's with the prefix "gpt_neox.", except for parameters after the
/// trunk.
Composition compose(const ParamInfo& info) {
  if (info.name == "lm_head.weight") return Composition::of("embed_out.weight", info.shape);
  if (info.name == "score.weight" || info.name.starts_with("classifier."))
    return Composition::of(info.name, info.shape);
  const std::string theirs = "gpt_neox." + info.name;
  if (info.name.find(".query_key_value.") != std::string::npos)
    return qkv_by_head(theirs, info.shape);
  return Composition::of(theirs, info.shape);
}

/// Causal masks and rotary frequencies, which old versions stored among the weights.
bool is_buffer(std::string_view name) {
  return name.ends_with(".attention.bias") || name.ends_with(".attention.masked_bias") ||
         name.ends_with(".rotary_emb.inv_freq");
}

using NeoxFamily = LayerNormFamilyOf<NeoxOptions, NeoxShape>;
TESSERA_MODEL("gpt_neox",
              NeoxFamily{.name = "gpt_neox",
                         .presets = presets(),
                         .classifies_tokens = true,
                         .specialize = specialize,
                         .possible = possible_shape,
                         .trunk = trunk_of,
                         .from_hf = from_hf,
                         .to_hf = to_hf,
                         .weight_map = {.compose = compose,
                                        .base = "gpt_neox.",
                                        .ties = {{"embed_out.weight", "gpt_neox.embed_in.weight"}},
                                        .is_buffer = is_buffer,
                                        .anchor = "gpt_neox.embed_in.weight"}});

TESSERA_MODULE_ORDER("gpt_neox",
                     {.base = "gpt_neox.",
                      .modules = {"gpt_neox.embed_in",
                                  "gpt_neox.layers.*.input_layernorm",
                                  "gpt_neox.layers.*.post_attention_layernorm",
                                  "gpt_neox.layers.*.attention.query_key_value",
                                  "gpt_neox.layers.*.attention.dense",
                                  "gpt_neox.layers.*.mlp.dense_h_to_4h",
                                  "gpt_neox.layers.*.mlp.dense_4h_to_h",
                                  "gpt_neox.final_layer_norm",
                                  "embed_out"}});

// llama.cpp always computes GELU by its approximation; the published models were trained with the
// exact GELU.
TESSERA_GGUF_NAMES("gptneox",
                   {.architecture = "GPTNeoXForCausalLM",
                    .model_type = "gpt_neox",
                    .keys = {{"context_length", "max_position_embeddings"},
                             {"embedding_length", "hidden_size"},
                             {"feed_forward_length", "intermediate_size"},
                             {"block_count", "num_hidden_layers"},
                             {"attention.head_count", "num_attention_heads"},
                             {"attention.layer_norm_epsilon", "layer_norm_eps", true},
                             {"rope.freq_base", "rotary_emb_base", true, false}},
                    .implied = {{"hidden_act", json::Value::string("gelu")},
                                {"attention_bias", json::Value::boolean(true)}},
                    .modules = {{"token_embd", "gpt_neox.embed_in"},
                                {"output_norm", "gpt_neox.final_layer_norm"},
                                {"output", "embed_out"},
                                {"blk.*.attn_norm", "gpt_neox.layers.*.input_layernorm"},
                                {"blk.*.attn_qkv", "gpt_neox.layers.*.attention.query_key_value"},
                                {"blk.*.attn_output", "gpt_neox.layers.*.attention.dense"},
                                {"blk.*.ffn_norm", "gpt_neox.layers.*.post_attention_layernorm"},
                                {"blk.*.ffn_up", "gpt_neox.layers.*.mlp.dense_h_to_4h"},
                                {"blk.*.ffn_down", "gpt_neox.layers.*.mlp.dense_4h_to_h"}},
                    .rotary = true,
                    .by_part = {"blk.*.attn_qkv"},
                    .rotary_share = "rotary_pct",
                    .switches = {{"use_parallel_residual", "use_parallel_residual"}}});

}  // namespace
}  // namespace tessera::models
