// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/llama.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/models/family.h"
#include "tessera/models/hf_config.h"
#include "tessera/models/module_order.h"
#include "tessera/models/objective.h"
#include "tessera/models/self_attention.h"
#include "tessera/nn/functional.h"
#include "tessera/ops/activation.h"

// Legend: B batch, T tokens, C embed, F ffn, H heads, G heads of keys and values, K channels of a
// head.
namespace tessera::models {

namespace {

using enum LogicalAxis;

/// Those whose parameters the options of the family have.
std::vector<std::string> rotary_scalings() {
  return {"default", "linear", "llama3"};
}

NormSpec norm_of(const LlamaShape& shape) {
  return {NormKind::RmsNorm, shape.rms_norm_eps};
}

TrunkOutput output_of(const LlamaShape& shape) {
  return {
      .hidden_size = shape.hidden_size,
      .norm = norm_of(shape),
      .norm_name = "norm",
      .vocabulary = {"embed_tokens.weight", shape.vocab_size, shape.tie_embeddings},
      .init_std = shape.init_std,
  };
}

SelfAttentionSpec attention_of(const LlamaShape& shape) {
  const Init init = Init::normal(shape.init_std);
  return {
      .hidden_size = shape.hidden_size,
      .num_heads = shape.num_heads,
      .num_kv_heads = shape.kv_heads(),
      .head_dim = shape.head_channels(),
      .qkv_name = "self_attn.qkv_proj",
      .output_name = "self_attn.o_proj",
      .qkv_bias = shape.attention_bias,
      .output_bias = shape.attention_bias,
      .qkv_init = init,
      .output_init = init,
      .dropout = shape.attention_dropout,
      .rotary_frequencies =
          ops::rotary_frequencies(shape.head_channels(), shape.rope_theta, shape.rope_scaling),
      .max_positions = shape.max_positions,
  };
}

class TokenEmbedding final : public nn::Block {
 public:
  explicit TokenEmbedding(const LlamaShape& shape) : shape_(shape) {}

  void declare(nn::Params& params) override { table_ = declare_table(params, output_of(shape_)); }

  [[nodiscard]] bool works_by_token() const override { return true; }

  nn::Outcome forward(nn::Flow /*in*/, const nn::Batch& batch, nn::StepContext& context) override {
    return {.flow = {.diff = {nn::embedding(batch.tensor("input_ids"), *table_, context)}}};
  }

 private:
  LlamaShape shape_;
  Param* table_ = nullptr;
};

/// down(activation(gate(h)) * up(h)).
class GatedMlp {
 public:
  explicit GatedMlp(const LlamaShape& shape)
      : shape_(shape), activation_(ops::activation_from_name(shape.activation)) {}

  void declare(nn::Params& params) {
    const std::int64_t C = shape_.hidden_size, F = shape_.ffn_hidden_size;
    const Init init = Init::normal(shape_.init_std);
    gate_up_weight_ = params.add("mlp.gate_up_proj.weight",
                                 {2, F, C},
                                 {None, Ffn, Embed},
                                 init,
                                 {.matrix_shape = {2 * F, C}});
    if (shape_.mlp_bias) {
      gate_up_bias_ = params.add(
          "mlp.gate_up_proj.bias", {2, F}, {None, Ffn}, Init::zeros(), {.matrix_shape = {2 * F}});
    }
    down_weight_ = params.add("mlp.down_proj.weight", {C, F}, {Embed, Ffn}, init);
    if (shape_.mlp_bias) down_bias_ = params.add("mlp.down_proj.bias", {C}, {Embed}, Init::zeros());
  }

  [[nodiscard]] at::Tensor operator()(const at::Tensor& h_BTC, nn::StepContext& context) const {
    const at::Tensor f_BTF =
        nn::gated(nn::linear(h_BTC, *gate_up_weight_, gate_up_bias_, context), activation_);
    return nn::linear(f_BTF, *down_weight_, down_bias_, context);
  }

 private:
  LlamaShape shape_;
  ops::Activation activation_;
  Param* gate_up_weight_ = nullptr;
  Param* gate_up_bias_ = nullptr;
  Param* down_weight_ = nullptr;
  Param* down_bias_ = nullptr;
};

class DecoderLayer final : public nn::Block {
 public:
  explicit DecoderLayer(const LlamaShape& shape)
      : hidden_size_(shape.hidden_size),
        attention_(attention_of(shape)),
        mlp_(shape),
        input_norm_(norm_of(shape)),
        mlp_norm_(norm_of(shape)) {}

  void declare(nn::Params& params) override {
    input_norm_.declare(params, "input_layernorm", hidden_size_);
    attention_.declare(params);
    mlp_norm_.declare(params, "post_attention_layernorm", hidden_size_);
    mlp_.declare(params);
  }

  [[nodiscard]] bool works_by_token() const override { return true; }

  nn::Outcome forward(nn::Flow in, const nn::Batch& batch, nn::StepContext& context) override {
    const nn::Normed begin = input_norm_.residual(in.diff.at(0), context);
    const at::Tensor y_BTC = attention_(begin.normed_BTC, batch, *this, context);
    const nn::Normed middle = mlp_norm_.residual(begin.x_BTC, context, y_BTC);
    return {.flow = {.diff = {middle.x_BTC + mlp_(middle.normed_BTC, context)}}};
  }

 private:
  std::int64_t hidden_size_;
  SelfAttention attention_;
  GatedMlp mlp_;
  Norm input_norm_, mlp_norm_;
};

template <class B>
nn::BlockSpec block(std::string name, const LlamaShape& shape) {
  return {std::move(name), [shape] { return std::make_unique<B>(shape); }};
}

}  // namespace

std::int64_t LlamaShape::num_parameters() const {
  const std::int64_t C = hidden_size, F = ffn_hidden_size, H = num_heads, G = kv_heads(),
                     K = head_channels();
  const std::int64_t attention =
                         (2 * H + 2 * G) * K * C + (attention_bias ? (H + 2 * G) * K + C : 0),
                     mlp = 3 * F * C + (mlp_bias ? 2 * F + C : 0), norms = 2 * C;
  return num_layers * (attention + mlp + norms) + C + (tie_embeddings ? 1 : 2) * vocab_size * C;
}

Trunk llama_trunk(const LlamaShape& shape) {
  Trunk trunk{.output = output_of(shape)};
  trunk.blocks.push_back(block<TokenEmbedding>("embed_tokens", shape));
  for (std::int64_t i = 0; i < shape.num_layers; ++i)
    trunk.blocks.push_back(block<DecoderLayer>(fmt::format("layers.{}", i), shape));
  return trunk;
}

nn::Model llama(const LlamaShape& shape) {
  return with_objective(llama_trunk(shape), "causal_lm");
}

namespace {

const std::vector<Preset>& presets() {
  static const std::vector<Preset> all = {
      {.name = "llama-nano",
       .num_layers = 4,
       .hidden_size = 128,
       .num_heads = 4,
       .num_kv_heads = 2,
       .ffn_hidden_size = 352,
       .bytes = true},
      {.name = "llama-mini",
       .num_layers = 6,
       .hidden_size = 384,
       .num_heads = 6,
       .num_kv_heads = 2,
       .ffn_hidden_size = 1024,
       .bytes = true},
      {.name = "llama2-7b",
       .num_layers = 32,
       .hidden_size = 4096,
       .num_heads = 32,
       .max_positions = 4096,
       .ffn_hidden_size = 11008},
      {.name = "llama2-13b",
       .num_layers = 40,
       .hidden_size = 5120,
       .num_heads = 40,
       .max_positions = 4096,
       .ffn_hidden_size = 13824},
  };
  return all;
}

struct LlamaOptions final : FamilyOptions {
  LlamaOptions() { tie_embeddings = false; }
  std::optional<std::int64_t> head_dim;
  double rope_theta = 10000.0;
  std::string rope_scaling = "default";
  double rope_factor = 1.0, rope_low_freq_factor = 1.0, rope_high_freq_factor = 4.0;
  std::int64_t rope_original_positions = 8192;
  bool attention_bias = false, mlp_bias = false;
  std::string activation = "silu";
  double attention_dropout = 0.0;
  double rms_norm_eps = 1e-5;

  [[nodiscard]] std::unique_ptr<FamilyOptions> clone() const override {
    return std::make_unique<LlamaOptions>(*this);
  }

  void describe(config::Fields& fields) override {
    describe_sizes(
        fields,
        {.presets = names_of(presets()),
         .preset_default = "llama-nano if no size is given",
         .positions_default = "data.sequence_length, or 1024 if neither is given; 4096 for llama2",
         .ffn_default = "of the preset, or 8/3 x hidden_size rounded up to a multiple of 256"});
    fields.field("head_dim",
                 head_dim,
                 {.text = "Channels of one attention head; even.",
                  .min = 2,
                  .max = 1e6,
                  .default_text = "hidden_size / num_heads"});
    describe_rotary(fields);
    fields.field("attention_bias",
                 attention_bias,
                 {.text = "Whether the four projections of attention have biases."});
    fields.field(
        "mlp_bias", mlp_bias, {.text = "Whether the three projections of the MLP have biases."});
    describe_tie(fields);
    fields.field("activation",
                 activation,
                 {.text = "Activation function of the gate.", .choices = ops::activation_names()});
    fields.field(
        "attention_dropout",
        attention_dropout,
        {.text = "Dropout probability on attention weights.", .min = 0, .max = kMaxDropout});
    fields.field("rms_norm_eps",
                 rms_norm_eps,
                 {.text = "Epsilon added to the mean square in RMS norms.",
                  .min = 0,
                  .max = 1,
                  .above_min = true});
    describe_init(fields, "Standard deviation of initial weights.");
    describe_label_smoothing(fields);
    describe_from(fields);
  }

 private:
  void describe_rotary(config::Fields& fields) {
    fields.field("rope_theta",
                 rope_theta,
                 {.text = "Base of the rotary frequencies.", .min = 1, .max = 1e12});
    fields.field("rope_scaling",
                 rope_scaling,
                 {.text = "Scaling of the rotary frequencies for contexts longer than those of "
                          "the first training.",
                  .choices = rotary_scalings()});
    fields.field("rope_factor",
                 rope_factor,
                 {.text = "Factor of rope_scaling.", .min = 0, .max = 1e6, .above_min = true});
    fields.field("rope_low_freq_factor",
                 rope_low_freq_factor,
                 {.text = "Periods in rope_original_positions up to which rope_scaling llama3 "
                          "divides a frequency by the whole factor.",
                  .min = 0,
                  .max = 1e6,
                  .above_min = true});
    fields.field("rope_high_freq_factor",
                 rope_high_freq_factor,
                 {.text = "Periods in rope_original_positions from which rope_scaling llama3 keeps "
                          "a frequency.",
                  .min = 0,
                  .max = 1e6,
                  .above_min = true});
    fields.field("rope_original_positions",
                 rope_original_positions,
                 {.text = "Sequence length of the first training, for rope_scaling llama3.",
                  .unit = "tokens",
                  .min = 1,
                  .max = 1e8});
  }
};

void set_rest(const LlamaOptions& options, LlamaShape& shape, Checks& checks) {
  shape.head_dim = options.head_dim.value_or(0);
  shape.rope_theta = options.rope_theta;
  shape.rope_scaling = {.kind = ops::rotary_scaling_from_name(options.rope_scaling),
                        .factor = options.rope_factor,
                        .low_freq_factor = options.rope_low_freq_factor,
                        .high_freq_factor = options.rope_high_freq_factor,
                        .original_positions = options.rope_original_positions};
  checks.require(options.rope_high_freq_factor > options.rope_low_freq_factor,
                 "model.rope_high_freq_factor",
                 fmt::format("rope_high_freq_factor {} is not above rope_low_freq_factor {}",
                             options.rope_high_freq_factor,
                             options.rope_low_freq_factor),
                 "set a larger rope_high_freq_factor");
  shape.attention_bias = options.attention_bias;
  shape.mlp_bias = options.mlp_bias;
  shape.tie_embeddings = options.tie_embeddings;
  shape.activation = options.activation;
  shape.attention_dropout = options.attention_dropout;
  shape.rms_norm_eps = options.rms_norm_eps;
  shape.init_std = options.init_std;
}

void check_head_sizes(const LlamaShape& shape, Checks& checks) {
  Sizes sizes = static_cast<const Sizes&>(shape);
  if (shape.head_dim > 0) sizes.hidden_size = sizes.num_heads * shape.head_dim;
  check_heads(sizes, checks);
  const std::int64_t heads = std::max<std::int64_t>(shape.num_heads, 1);
  const std::int64_t channels = shape.head_dim > 0 ? shape.head_dim : shape.hidden_size / heads;
  checks.require(
      channels > 0 && channels % 2 == 0,
      shape.head_dim > 0 ? "model.head_dim" : "model.num_heads",
      fmt::format("a head has {} channels, and rotary positions turn pairs of them", channels),
      "choose an even number of channels for each head");
}

json::Value description_of(const LlamaShape& shape, const LlamaOptions& options) {
  LlamaOptions out = options;
  out.preset.reset();
  out.from.reset();
  out.num_layers = shape.num_layers;
  out.hidden_size = shape.hidden_size;
  out.num_heads = shape.num_heads;
  out.num_kv_heads = shape.num_kv_heads;
  out.vocab_size = shape.vocab_size;
  out.max_positions = shape.max_positions;
  out.ffn_hidden_size = shape.ffn_hidden_size;
  ModelOptions whole("llama", std::make_unique<LlamaOptions>(std::move(out)));
  return config::write(whole);
}

/// A shape whose blocks can be listed, even if some sizes were refused.
LlamaShape possible(LlamaShape shape) {
  make_possible(shape);
  if (shape.head_channels() % 2 != 0) shape.head_dim = shape.head_channels() + 1;
  if (shape.num_kv_heads < 1 || shape.num_heads % shape.num_kv_heads != 0)
    shape.num_kv_heads = shape.num_heads;
  return shape;
}

Resolved resolve_llama(const LlamaOptions& options,
                       std::int64_t tokenizer_size,
                       std::optional<std::int64_t> sequence_length,
                       config::Problems& problems,
                       const config::Origins& origins) {
  constexpr std::int64_t kFfnMultiple = 256;
  Checks checks(problems, origins);
  LlamaShape shape;
  const std::string otherwise = presets().front().name;
  const Preset* preset = find_preset(options, presets(), otherwise, checks);
  set_layers(options, preset, shape, checks);
  const bool preset_ffn = preset != nullptr && preset->ffn_hidden_size > 0 && !options.hidden_size;
  const std::int64_t thirds = (8 * shape.hidden_size + 2) / 3;
  shape.ffn_hidden_size = options.ffn_hidden_size.value_or(
      preset_ffn ? preset->ffn_hidden_size
                 : (thirds + kFfnMultiple - 1) / kFfnMultiple * kFfnMultiple);
  set_positions(options, preset, sequence_length, shape, checks);
  set_vocabulary(options, tokenizer_size, shape, checks);
  set_rest(options, shape, checks);
  check_head_sizes(shape, checks);
  Resolved out = {.description = description_of(shape, options),
                  .trunk = llama_trunk(possible(shape)),
                  .vocab_size = shape.vocab_size,
                  .tokenizer_size = shape.tokenizer_size,
                  .max_positions = shape.max_positions,
                  .num_parameters = possible(shape).num_parameters(),
                  .num_layers = shape.num_layers,
                  .hidden_size = shape.hidden_size,
                  .num_heads = shape.num_heads,
                  .num_kv_heads = shape.num_kv_heads,
                  .tied_head = shape.tie_embeddings};
  if (options.label_smoothing > 0)
    out.objective_options["label_smoothing"] = json::Value::number(options.label_smoothing);
  out.derivations = derivations_of(options, otherwise, shape);
  return out;
}

/// The rotary part of a config.json: `rope_parameters` since transformers 5, before that
/// `rope_scaling` beside `rope_theta`.
void read_rotary(const HfConfig& keys, LlamaOptions& out) {
  out.rope_theta = keys.number("rope_theta", 10000.0, 1, 1e12);
  const char* const key = keys.empty("rope_parameters") ? "rope_scaling" : "rope_parameters";
  if (keys.empty(key)) return;
  const HfConfig rope(*keys.find(key));
  out.rope_theta = rope.number("rope_theta", out.rope_theta, 1, 1e12);
  out.rope_scaling = rope.word(rope.find("rope_type") != nullptr ? "rope_type" : "type", "default");
  const auto names = rotary_scalings();
  rope.refuse(rope.find("rope_type") != nullptr ? "rope_type" : "type",
              std::find(names.begin(), names.end(), out.rope_scaling) != names.end(),
              "one of default, linear and llama3");
  out.rope_factor = rope.number("factor", 1.0, 1e-6, 1e6);
  out.rope_low_freq_factor = rope.number("low_freq_factor", 1.0, 1e-6, 1e6);
  out.rope_high_freq_factor = rope.number("high_freq_factor", 4.0, 1e-6, 1e6);
  out.rope_original_positions = rope.count("original_max_position_embeddings", 8192, 1e8);
}

LlamaOptions from_hf(const json::Value& config) {
  const HfConfig keys(config);
  keys.refuse(
      "model_type", keys.word("model_type", "llama") == "llama", "\"model_type\": \"llama\"");
  keys.refuse("quantization_config", keys.empty("quantization_config"), "plain float weights");
  keys.refuse("pruned_heads", keys.empty("pruned_heads"), "all their heads");
  LlamaOptions out;
  out.num_layers = keys.count("num_hidden_layers", 32, 1e4);
  out.hidden_size = keys.count("hidden_size", 4096, 1e6);
  out.num_heads = keys.count("num_attention_heads", 32, 1e6);
  out.num_kv_heads = keys.count("num_key_value_heads", *out.num_heads, 1e6);
  out.vocab_size = keys.count("vocab_size", 32000, 1e8);
  out.max_positions = keys.count("max_position_embeddings", 2048, 1e8);
  out.ffn_hidden_size = keys.count("intermediate_size", 11008, 1e7);
  if (!keys.empty("head_dim")) out.head_dim = keys.count("head_dim", 0, 1e6);
  read_rotary(keys, out);
  out.attention_bias = keys.flag("attention_bias", false);
  out.mlp_bias = keys.flag("mlp_bias", false);
  out.tie_embeddings = keys.flag("tie_word_embeddings", false);
  out.activation = keys.activation("hidden_act", "silu");
  out.attention_dropout = keys.number("attention_dropout", 0.0, 0, kMaxDropout);
  out.rms_norm_eps = keys.number("rms_norm_eps", 1e-6, 1e-30, 1);
  out.init_std = keys.number("initializer_range", 0.02, 0, 100);
  return out;
}

json::Value rotary_to_hf(const LlamaOptions& options) {
  json::Value out = json::Value::object({{"rope_type", json::Value::string(options.rope_scaling)},
                                         {"rope_theta", json::Value::number(options.rope_theta)}});
  const auto kind = ops::rotary_scaling_from_name(options.rope_scaling);
  if (kind == ops::RotaryScalingKind::Default) return out;
  out["factor"] = json::Value::number(options.rope_factor);
  if (kind == ops::RotaryScalingKind::Linear) return out;
  out["low_freq_factor"] = json::Value::number(options.rope_low_freq_factor);
  out["high_freq_factor"] = json::Value::number(options.rope_high_freq_factor);
  out["original_max_position_embeddings"] = json::Value::integer(options.rope_original_positions);
  return out;
}

json::Value to_hf(const LlamaOptions& options) {
  const std::string activation = activation_to_hf(options.activation);
  TESSERA_REQUIRE(
      !activation.empty(),
      Unsupported,
      fmt::format("model.activation {} has no name in Hugging Face's Llama", options.activation),
      "train with silu, gelu_tanh, gelu or relu");
  const auto integer = [](const std::optional<std::int64_t>& value) {
    return json::Value::integer(value.value());
  };
  const auto number = [](double value) { return json::Value::number(value); };
  const json::Value rotary = rotary_to_hf(options);
  const bool scaled = options.rope_scaling != "default";
  json::Value out = json::Value::object(
      {{"architectures", json::Value::array({json::Value::string("LlamaForCausalLM")})},
       {"model_type", json::Value::string("llama")},
       {"vocab_size", integer(options.vocab_size)},
       {"max_position_embeddings", integer(options.max_positions)},
       {"hidden_size", integer(options.hidden_size)},
       {"intermediate_size", integer(options.ffn_hidden_size)},
       {"num_hidden_layers", integer(options.num_layers)},
       {"num_attention_heads", integer(options.num_heads)},
       {"num_key_value_heads", integer(options.num_kv_heads)},
       {"hidden_act", json::Value::string(activation)},
       {"rms_norm_eps", number(options.rms_norm_eps)},
       {"rope_theta", number(options.rope_theta)},
       {"rope_scaling", scaled ? rotary : json::Value()},
       {"rope_parameters", rotary},
       {"attention_bias", json::Value::boolean(options.attention_bias)},
       {"mlp_bias", json::Value::boolean(options.mlp_bias)},
       {"attention_dropout", number(options.attention_dropout)},
       {"initializer_range", number(options.init_std)},
       {"tie_word_embeddings", json::Value::boolean(options.tie_embeddings)}});
  if (options.head_dim) out["head_dim"] = integer(options.head_dim);
  return out;
}

/// Hugging Face stores queries, keys and values apart, and so the gate and up projections; its
/// names are ours with "model." before them, but for what stands behind the trunk.
Composition compose(const ParamInfo& info) {
  const Shape& shape = info.shape;
  const bool outside = info.name == "lm_head.weight" || info.name == "score.weight";
  const std::string theirs = (outside ? "" : "model.") + info.name;
  // The name with "qkv", say, replaced by "q".
  const auto part = [&](std::string_view ours, std::string_view its, Shape stored) {
    std::string name = theirs;
    name.replace(name.find(ours), ours.size(), its);
    return Composition::of(std::move(name), std::move(stored));
  };
  if (theirs.find(".gate_up_proj.") != std::string::npos) {
    const Shape stored(shape.begin() + 1, shape.end());
    Shape one = stored;
    one.insert(one.begin(), 1);
    return Composition::concat({part("gate_up_proj", "gate_proj", stored).viewed(one),
                                part("gate_up_proj", "up_proj", stored).viewed(one)},
                               0);
  }
  if (theirs.find(".qkv_proj.") == std::string::npos) return Composition::of(theirs, shape);
  // [groups, queries + 2, channels, ...], or [3, heads, channels, ...] where no heads are shared.
  const bool grouped = info.axes.front() == KvHeads;
  const std::int64_t channels = shape[2];
  const auto heads = [&](std::string_view its, std::int64_t count) {
    const std::int64_t all = grouped ? shape[0] * count : shape[1];
    Shape stored = {all * channels},
          here = grouped ? Shape{shape[0], count, channels} : Shape{1, all, channels};
    stored.insert(stored.end(), shape.begin() + 3, shape.end());
    here.insert(here.end(), shape.begin() + 3, shape.end());
    return part("qkv_proj", its, stored).viewed(here);
  };
  return Composition::concat(
      {heads("q_proj", grouped ? shape[1] - 2 : 1), heads("k_proj", 1), heads("v_proj", 1)},
      grouped ? 1 : 0);
}

/// Rotary frequencies that old versions stored among the weights.
bool is_buffer(std::string_view name) {
  return name.ends_with(".rotary_emb.inv_freq");
}

TESSERA_MODEL("llama",
              FamilyOf<LlamaOptions>{
                  .presets = presets(),
                  .adjustable = {{"attention_dropout"}, {"init_std"}, {"label_smoothing"}},
                  .resolve = resolve_llama,
                  .from_hf = from_hf,
                  .to_hf = to_hf,
                  .weight_map = {.compose = compose,
                                 .base = "model.",
                                 .ties = {{"lm_head.weight", "model.embed_tokens.weight"}},
                                 .is_buffer = is_buffer,
                                 .anchor = "model.embed_tokens.weight"}});

TESSERA_MODULE_ORDER("llama",
                     {.base = "model.",
                      .modules = {"model.embed_tokens",
                                  "model.layers.*.self_attn.q_proj",
                                  "model.layers.*.self_attn.k_proj",
                                  "model.layers.*.self_attn.v_proj",
                                  "model.layers.*.self_attn.o_proj",
                                  "model.layers.*.mlp.gate_proj",
                                  "model.layers.*.mlp.up_proj",
                                  "model.layers.*.mlp.down_proj",
                                  "model.layers.*.input_layernorm",
                                  "model.layers.*.post_attention_layernorm",
                                  "model.norm",
                                  "lm_head"}});

}  // namespace
}  // namespace tessera::models
