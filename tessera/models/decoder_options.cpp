// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/decoder_options.h"

#include <algorithm>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/ops/activation.h"

namespace tessera::models {

using enum LogicalAxis;

namespace {

/// The rotary scalings whose parameters DecoderOptions has.
std::vector<std::string> rotary_scalings() {
  return {"default", "linear", "llama3", "yarn"};
}

constexpr const char* kSliding = "sliding_attention";
constexpr const char* kFull = "full_attention";

}  // namespace

void DecoderOptions::describe_shape(config::Fields& fields,
                                    const std::vector<Preset>& presets,
                                    const Texts& texts) {
  describe_sizes(fields,
                 {.presets = names_of(presets),
                  .preset_default = presets.front().name + " if no size is given",
                  .positions_default = texts.positions_default,
                  .ffn_default = texts.ffn_default});
  fields.field("head_dim",
               head_dim,
               {.text = "Channels of one attention head; even.",
                .min = 2,
                .max = 1e6,
                .default_text = "hidden_size / num_heads"});
  describe_rotary(fields);
}

void DecoderOptions::describe_windows(config::Fields& fields) {
  fields.field("sliding_window",
               sliding_window,
               {.text = "Number of tokens that a token attends to, itself among them, in layers "
                        "with a sliding window; 0 disables the windows.",
                .unit = "tokens",
                .min = 0,
                .max = 1e8});
  fields.field("layer_types",
               layer_types,
               {.text = "Attention of each layer; empty: by the rule of the family.",
                .choices = {kSliding, kFull}});
}

void DecoderOptions::describe_rest(config::Fields& fields) {
  describe_tie(fields);
  fields.field("activation",
               activation,
               {.text = "Activation function of the gate.", .choices = ops::activation_names()});
  fields.field("attention_dropout",
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

void DecoderOptions::describe_rotary(config::Fields& fields) {
  fields.field(
      "rope_theta", rope_theta, {.text = "Base of the rotary frequencies.", .min = 1, .max = 1e12});
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
               {.text = "Sequence length of the first training, for rope_scaling llama3 and yarn.",
                .unit = "tokens",
                .min = 1,
                .max = 1e8});
  fields.field("rope_beta_fast",
               rope_beta_fast,
               {.text = "Turns within rope_original_positions from which rope_scaling yarn keeps a "
                        "frequency.",
                .min = 0,
                .max = 1e6,
                .above_min = true});
  fields.field(
      "rope_beta_slow",
      rope_beta_slow,
      {.text = "Turns within rope_original_positions up to which rope_scaling yarn divides "
               "a frequency by the whole factor.",
       .min = 0,
       .max = 1e6,
       .above_min = true});
  fields.field("rope_attention_factor",
               rope_attention_factor,
               {.text = "Factor of sines and cosines with rope_scaling yarn.",
                .min = 0,
                .max = 1e6,
                .above_min = true,
                .default_text = "0.1 ln(rope_factor) + 1"});
}

namespace {

ops::RotaryScaling scaling_of(const DecoderOptions& options) {
  ops::RotaryScaling out = {.kind = ops::rotary_scaling_from_name(options.rope_scaling),
                            .factor = options.rope_factor,
                            .low_freq_factor = options.rope_low_freq_factor,
                            .high_freq_factor = options.rope_high_freq_factor,
                            .original_positions = options.rope_original_positions,
                            .beta_fast = options.rope_beta_fast,
                            .beta_slow = options.rope_beta_slow};
  out.attention_factor = options.rope_attention_factor;
  return out;
}

void set_common(const DecoderOptions& options, DecoderShape& shape, Checks& checks) {
  shape.head_dim = options.head_dim.value_or(shape.head_dim);
  shape.rope_theta = options.rope_theta;
  shape.rope_scaling = scaling_of(options);
  checks.require(options.rope_high_freq_factor > options.rope_low_freq_factor,
                 "model.rope_high_freq_factor",
                 fmt::format("rope_high_freq_factor {} is not above rope_low_freq_factor {}",
                             options.rope_high_freq_factor,
                             options.rope_low_freq_factor),
                 "set a larger rope_high_freq_factor");
  checks.require(options.rope_beta_fast > options.rope_beta_slow,
                 "model.rope_beta_fast",
                 fmt::format("rope_beta_fast {} is not above rope_beta_slow {}",
                             options.rope_beta_fast,
                             options.rope_beta_slow),
                 "set a larger rope_beta_fast");
  shape.tie_embeddings = options.tie_embeddings;
  shape.activation = options.activation;
  shape.attention_dropout = options.attention_dropout;
  shape.rms_norm_eps = options.rms_norm_eps;
  shape.init_std = options.init_std;
}

void check_head_sizes(const DecoderShape& shape, Checks& checks) {
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

void check_layers(const DecoderOptions& options, const DecoderShape& shape, Checks& checks) {
  const auto given = static_cast<std::int64_t>(options.layer_types.size());
  checks.require(given == 0 || given == shape.num_layers,
                 "model.layer_types",
                 fmt::format("layer_types has {} entries for {} layers", given, shape.num_layers),
                 "give one entry for each layer, or none");
  const bool slides = std::find(options.layer_types.begin(), options.layer_types.end(), kSliding) !=
                      options.layer_types.end();
  checks.require(!slides || options.sliding_window > 0,
                 "model.sliding_window",
                 "layer_types names layers with a sliding window, and sliding_window is 0",
                 "give sliding_window");
}

json::Value description_of(const std::string& family,
                           const DecoderShape& shape,
                           const DecoderOptions& options) {
  std::unique_ptr<FamilyOptions> out = options.clone();
  out->preset.reset();
  out->from.reset();
  out->num_layers = shape.num_layers;
  out->hidden_size = shape.hidden_size;
  out->num_heads = shape.num_heads;
  out->num_kv_heads = shape.num_kv_heads;
  out->vocab_size = shape.vocab_size;
  out->max_positions = shape.max_positions;
  out->ffn_hidden_size = shape.ffn_hidden_size;
  auto* decoder = dynamic_cast<DecoderOptions*>(out.get());
  TESSERA_ASSERT(decoder != nullptr);
  if (shape.head_dim > 0) decoder->head_dim = shape.head_dim;
  ModelOptions whole(family, std::move(out));
  return config::write(whole);
}

/// A shape whose blocks can be listed, even if some sizes were refused.
DecoderShape possible(DecoderShape shape) {
  make_possible(shape);
  if (shape.head_channels() % 2 != 0) shape.head_dim = shape.head_channels() + 1;
  if (shape.num_kv_heads < 1 || shape.num_heads % shape.num_kv_heads != 0)
    shape.num_kv_heads = shape.num_heads;
  if (static_cast<std::int64_t>(shape.layers.size()) != shape.num_layers) shape.layers.clear();
  return shape;
}

/// 8/3 of the hidden size, rounded up.
std::int64_t default_ffn(std::int64_t hidden_size) {
  constexpr std::int64_t kMultiple = 256;
  const std::int64_t thirds = (8 * hidden_size + 2) / 3;
  return (thirds + kMultiple - 1) / kMultiple * kMultiple;
}

}  // namespace

std::vector<DecoderLayerKind> windows_by_layer(const DecoderOptions& options,
                                               std::int64_t layers,
                                               bool (*slides)(std::int64_t layer)) {
  std::vector<DecoderLayerKind> out(static_cast<std::size_t>(std::max<std::int64_t>(layers, 0)));
  if (options.sliding_window == 0) return out;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const bool here = i < options.layer_types.size() ? options.layer_types[i] == kSliding
                                                     : slides(static_cast<std::int64_t>(i));
    if (here) out[i].window = options.sliding_window;
  }
  return out;
}

Resolved resolve_decoder(const DecoderFamily& family,
                         const DecoderOptions& options,
                         std::int64_t tokenizer_size,
                         std::optional<std::int64_t> sequence_length,
                         config::Problems& problems,
                         const config::Origins& origins) {
  Checks checks(problems, origins);
  DecoderShape shape;
  const std::string otherwise = family.presets.front().name;
  const Preset* preset = find_preset(options, family.presets, otherwise, checks);
  set_layers(options, preset, shape, checks);
  const bool of_preset = preset != nullptr && !options.hidden_size;
  shape.ffn_hidden_size = options.ffn_hidden_size.value_or(of_preset && preset->ffn_hidden_size > 0
                                                               ? preset->ffn_hidden_size
                                                               : default_ffn(shape.hidden_size));
  if (of_preset && !options.num_heads) shape.head_dim = preset->head_dim;
  set_positions(options, preset, sequence_length, shape, checks);
  set_vocabulary(options, tokenizer_size, shape, checks);
  set_common(options, shape, checks);
  check_head_sizes(shape, checks);
  check_layers(options, shape, checks);
  if (family.specialize != nullptr) family.specialize(options, shape);
  const DecoderShape usable = possible(shape);
  Resolved out = {.description = description_of(family.name, shape, options),
                  .trunk = decoder_trunk(usable),
                  .vocab_size = shape.vocab_size,
                  .tokenizer_size = shape.tokenizer_size,
                  .max_positions = shape.max_positions,
                  .num_parameters = usable.num_parameters(),
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

void read_rotary(const HfConfig& keys, const char* object, DecoderOptions& out) {
  if (keys.empty(object)) return;
  const HfConfig rope(*keys.find(object));
  out.rope_theta = rope.number("rope_theta", out.rope_theta, 1, 1e12);
  const char* const type = rope.find("rope_type") != nullptr ? "rope_type" : "type";
  out.rope_scaling = rope.word(type, "default");
  const auto names = rotary_scalings();
  rope.refuse(type,
              std::find(names.begin(), names.end(), out.rope_scaling) != names.end(),
              "one of default, linear, llama3 and yarn");
  if (out.rope_scaling == "default") return;
  const auto positions = static_cast<double>(out.max_positions.value_or(8192));
  out.rope_original_positions =
      rope.count("original_max_position_embeddings", out.max_positions.value_or(8192), 1e8);
  const bool yarn = out.rope_scaling == "yarn";
  out.rope_factor =
      rope.number("factor",
                  yarn ? positions / static_cast<double>(out.rope_original_positions) : 1.0,
                  1e-6,
                  1e6);
  out.rope_low_freq_factor = rope.number("low_freq_factor", 1.0, 1e-6, 1e6);
  out.rope_high_freq_factor = rope.number("high_freq_factor", 4.0, 1e-6, 1e6);
  if (!yarn) return;
  out.rope_beta_fast = rope.number("beta_fast", 32.0, 1e-6, 1e6);
  out.rope_beta_slow = rope.number("beta_slow", 1.0, 1e-6, 1e6);
  rope.refuse("mscale", rope.empty("mscale"), "attention_factor in its place");
  rope.refuse("mscale_all_dim", rope.empty("mscale_all_dim"), "attention_factor in its place");
  rope.refuse("truncate", rope.flag("truncate", true), "true");
  if (!rope.empty("attention_factor"))
    out.rope_attention_factor = rope.number("attention_factor", 1.0, 1e-6, 1e6);
}

std::vector<std::string> layer_types_of(const HfConfig& keys) {
  if (keys.empty("layer_types")) return {};
  const json::Value& types = *keys.find("layer_types");
  keys.refuse("layer_types", types.is_array(), "a list");
  std::vector<std::string> out;
  for (const json::Value& type : types.items()) {
    const bool known =
        type.is_string() && (type.as_string() == kSliding || type.as_string() == kFull);
    keys.refuse("layer_types", known, "a list of sliding_attention and full_attention");
    out.push_back(type.as_string());
  }
  return out;
}

void read_layer_types(const HfConfig& keys, DecoderOptions& out) {
  out.layer_types = layer_types_of(keys);
}

double partial_rotary_factor(const HfConfig& keys, double absent) {
  const double beside = keys.number("partial_rotary_factor", absent, 1e-6, 1);
  if (keys.empty("rope_parameters")) return beside;
  return HfConfig(*keys.find("rope_parameters")).number("partial_rotary_factor", beside, 1e-6, 1);
}

void set_partial_rotary_factor(json::Value& hf_config, double share) {
  hf_config["partial_rotary_factor"] = json::Value::number(share);
  hf_config["rope_parameters"]["partial_rotary_factor"] = json::Value::number(share);
}

json::Value window_to_hf(const DecoderOptions& options) {
  return options.sliding_window > 0 ? json::Value::integer(options.sliding_window) : json::Value();
}

void read_late_windows(const HfConfig& keys, DecoderOptions& out) {
  if (!keys.flag("use_sliding_window", false)) {
    out.layer_types.clear();
    return;
  }
  out.sliding_window = keys.empty("sliding_window") ? 4096 : keys.count("sliding_window", 0, 1e8);
  const std::int64_t from = keys.count_or_null("max_window_layers", 1e8);
  const std::int64_t first = keys.empty("max_window_layers") ? 28 : from;
  if (!out.layer_types.empty()) return;
  for (std::int64_t i = 0; i < out.num_layers.value(); ++i)
    out.layer_types.emplace_back(i >= first ? kSliding : kFull);
}

void late_windows_to_hf(const DecoderOptions& options, json::Value& hf_config) {
  hf_config["use_sliding_window"] = json::Value::boolean(options.sliding_window > 0);
  hf_config["sliding_window"] = window_to_hf(options);
  const auto first = std::find(options.layer_types.begin(), options.layer_types.end(), kSliding);
  hf_config["max_window_layers"] = json::Value::integer(first - options.layer_types.begin());
}

void read_decoder(const HfConfig& keys, const DecoderDefaults& defaults, DecoderOptions& out) {
  const std::string& type = defaults.model_type;
  const std::string expected = "\"model_type\": \"" + type + "\"";
  keys.refuse("model_type", keys.word("model_type", type.c_str()) == type, expected.c_str());
  keys.refuse("quantization_config", keys.empty("quantization_config"), "plain float weights");
  keys.refuse("pruned_heads", keys.empty("pruned_heads"), "all their heads");
  out.num_layers = keys.count("num_hidden_layers", defaults.layers, 1e4);
  out.hidden_size = keys.count("hidden_size", defaults.hidden, 1e6);
  out.num_heads = keys.count("num_attention_heads", defaults.heads, 1e6);
  out.num_kv_heads =
      keys.count("num_key_value_heads",
                 defaults.kv_heads > 0 && keys.empty("num_attention_heads") ? defaults.kv_heads
                                                                            : *out.num_heads,
                 1e6);
  out.vocab_size = keys.count("vocab_size", defaults.vocab, 1e8);
  out.max_positions = keys.count("max_position_embeddings", defaults.positions, 1e8);
  out.ffn_hidden_size = keys.count("intermediate_size", defaults.ffn, 1e7);
  if (!keys.empty("head_dim") || defaults.head_dim > 0)
    out.head_dim = keys.count("head_dim", defaults.head_dim, 1e6);
  out.rope_theta = keys.number("rope_theta", defaults.rope_theta, 1, 1e12);
  read_rotary(keys, keys.empty("rope_parameters") ? "rope_scaling" : "rope_parameters", out);
  out.tie_embeddings = keys.flag("tie_word_embeddings", defaults.tied);
  out.activation = keys.activation(defaults.activation_key, defaults.activation);
  out.attention_dropout = keys.number("attention_dropout", 0.0, 0, kMaxDropout);
  out.rms_norm_eps = keys.number("rms_norm_eps", defaults.rms_norm_eps, 1e-30, 1);
  out.init_std = keys.number("initializer_range", 0.02, 0, 100);
}

namespace {

json::Value rotary_to_hf(const DecoderOptions& options) {
  json::Value out = json::Value::object({{"rope_type", json::Value::string(options.rope_scaling)},
                                         {"rope_theta", json::Value::number(options.rope_theta)}});
  const auto kind = ops::rotary_scaling_from_name(options.rope_scaling);
  if (kind == ops::RotaryScalingKind::Default) return out;
  out["factor"] = json::Value::number(options.rope_factor);
  if (kind == ops::RotaryScalingKind::Linear) return out;
  out["original_max_position_embeddings"] = json::Value::integer(options.rope_original_positions);
  if (kind == ops::RotaryScalingKind::Yarn) {
    out["beta_fast"] = json::Value::number(options.rope_beta_fast);
    out["beta_slow"] = json::Value::number(options.rope_beta_slow);
    if (options.rope_attention_factor)
      out["attention_factor"] = json::Value::number(*options.rope_attention_factor);
    return out;
  }
  out["low_freq_factor"] = json::Value::number(options.rope_low_freq_factor);
  out["high_freq_factor"] = json::Value::number(options.rope_high_freq_factor);
  return out;
}

}  // namespace

json::Value decoder_to_hf(const DecoderOptions& options,
                          const std::string& architecture,
                          const DecoderDefaults& defaults) {
  const std::string activation = activation_to_hf(options.activation);
  TESSERA_REQUIRE(
      !activation.empty(),
      Unsupported,
      fmt::format(
          "model.activation {} has no name in Hugging Face's {}", options.activation, architecture),
      "train with silu, gelu_tanh, gelu or relu");
  const auto integer = [](const std::optional<std::int64_t>& value) {
    return json::Value::integer(value.value());
  };
  const auto number = [](double value) { return json::Value::number(value); };
  const json::Value rotary = rotary_to_hf(options);
  const bool scaled = options.rope_scaling != "default";
  json::Value out = json::Value::object(
      {{"architectures", json::Value::array({json::Value::string(architecture)})},
       {"model_type", json::Value::string(defaults.model_type)},
       {"vocab_size", integer(options.vocab_size)},
       {"max_position_embeddings", integer(options.max_positions)},
       {"hidden_size", integer(options.hidden_size)},
       {"intermediate_size", integer(options.ffn_hidden_size)},
       {"num_hidden_layers", integer(options.num_layers)},
       {"num_attention_heads", integer(options.num_heads)},
       {"num_key_value_heads", integer(options.num_kv_heads)},
       {defaults.activation_key, json::Value::string(activation)},
       {"rms_norm_eps", number(options.rms_norm_eps)},
       {"rope_theta", number(options.rope_theta)},
       {"rope_scaling", scaled ? rotary : json::Value()},
       {"rope_parameters", rotary},
       {"attention_dropout", number(options.attention_dropout)},
       {"initializer_range", number(options.init_std)},
       {"tie_word_embeddings", json::Value::boolean(options.tie_embeddings)}});
  if (options.head_dim || defaults.head_dim > 0) {
    out["head_dim"] =
        json::Value::integer(options.head_dim.value_or(*options.hidden_size / *options.num_heads));
  }
  if (!options.layer_types.empty()) {
    json::Value types = json::Value::array();
    for (const std::string& type : options.layer_types)
      types.push_back(json::Value::string(type));
    out["layer_types"] = std::move(types);
  }
  return out;
}

namespace {

std::string hf_name(const std::string& ours) {
  const bool outside = ours == "lm_head.weight" || ours == "score.weight";
  return (outside ? "" : "model.") + ours;
}

/// The boxes of queries, keys and values in [groups, queries + 2, channels, ...], or in [3, heads,
/// channels, ...] where no heads are shared: the number of heads of each, and its part's shape.
struct HeadsPart {
  std::int64_t rows = 0;
  Shape stored, here;
};
HeadsPart heads_part(const ParamInfo& info, bool queries) {
  const Shape& shape = info.shape;
  const bool grouped = info.axes.front() == KvHeads;
  const std::int64_t count = grouped && queries ? shape[1] - 2 : 1, channels = shape[2],
                     all = grouped ? shape[0] * count : shape[1];
  HeadsPart out = {.rows = all * channels,
                   .stored = {all * channels},
                   .here = grouped ? Shape{shape[0], count, channels} : Shape{1, all, channels}};
  out.stored.insert(out.stored.end(), shape.begin() + 3, shape.end());
  out.here.insert(out.here.end(), shape.begin() + 3, shape.end());
  return out;
}

bool is_part(const std::string& name, std::string_view module) {
  return name.find(module) != std::string::npos;
}

}  // namespace

Composition compose_decoder(const ParamInfo& info) {
  const Shape& shape = info.shape;
  const std::string theirs = hf_name(info.name);
  // The name with "qkv", say, replaced by "q".
  const auto part = [&](std::string_view ours, std::string_view its, Shape stored) {
    std::string name = theirs;
    name.replace(name.find(ours), ours.size(), its);
    return Composition::of(std::move(name), std::move(stored));
  };
  if (is_part(theirs, ".gate_up_proj.")) {
    const Shape stored(shape.begin() + 1, shape.end());
    Shape one = stored;
    one.insert(one.begin(), 1);
    return Composition::concat({part("gate_up_proj", "gate_proj", stored).viewed(one),
                                part("gate_up_proj", "up_proj", stored).viewed(one)},
                               0);
  }
  if (!is_part(theirs, ".qkv_proj.")) return Composition::of(theirs, shape);
  const auto heads = [&](std::string_view its, bool queries) {
    const HeadsPart of = heads_part(info, queries);
    return part("qkv_proj", its, of.stored).viewed(of.here);
  };
  return Composition::concat(
      {heads("q_proj", true), heads("k_proj", false), heads("v_proj", false)},
      info.axes.front() == KvHeads ? 1 : 0);
}

Composition compose_fused_decoder(const ParamInfo& info) {
  const Shape& shape = info.shape;
  const std::string theirs = hf_name(info.name);
  if (is_part(theirs, ".gate_up_proj.")) {
    Shape stored(shape.begin() + 1, shape.end());
    stored.front() *= shape.front();
    return Composition::of(theirs, stored).viewed(shape);
  }
  if (!is_part(theirs, ".qkv_proj.")) return Composition::of(theirs, shape);
  const HeadsPart q = heads_part(info, true), k = heads_part(info, false);
  Shape whole = q.stored;
  whole.front() = q.rows + 2 * k.rows;
  const Composition all = Composition::of(theirs, whole);
  return Composition::concat({all.slice(0, 0, q.rows).viewed(q.here),
                              all.slice(0, q.rows, q.rows + k.rows).viewed(k.here),
                              all.slice(0, q.rows + k.rows, q.rows + 2 * k.rows).viewed(k.here)},
                             info.axes.front() == KvHeads ? 1 : 0);
}

bool is_rotary_buffer(std::string_view name) {
  return name.ends_with(".rotary_emb.inv_freq");
}

WeightMap decoder_weights(Composition (*compose)(const ParamInfo& info)) {
  return {.compose = compose,
          .base = "model.",
          .ties = {{"lm_head.weight", "model.embed_tokens.weight"}},
          .is_buffer = is_rotary_buffer,
          .anchor = "model.embed_tokens.weight"};
}

}  // namespace tessera::models
