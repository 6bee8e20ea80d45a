// SPDX-License-Identifier: Apache-2.0
// The text model of Llama 4: a router whose weights multiply the inputs of experts, a shared
// expert, attention within chunks in layers with rotary positions, and layers without, whose
// queries grow with the position. Source: Meta 2025, "The Llama 4 herd".
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/models/decoder_family.h"
#include "tessera/models/expert_weights.h"
#include "tessera/models/gguf_names.h"
#include "tessera/models/moe_hf.h"

namespace tessera::models {
namespace {

std::vector<PresetValue> published(std::int64_t experts, std::int64_t every) {
  return {{"moe.num_experts", experts},
          {"moe.every", every},
          {"moe.ffn_hidden_size", std::int64_t{8192}},
          {"attention_chunk", std::int64_t{8192}},
          {"temperature_scale", 0.1},
          {"rope_theta", 500000.0}};
}

std::vector<PresetValue> scout() {
  std::vector<PresetValue> out = published(16, 1);
  out.insert(out.end(),
             {{"rope_scaling", std::string("llama3")},
              {"rope_factor", 16.0},
              {"rope_high_freq_factor", 1.0},
              {"rope_original_positions", std::int64_t{8192}}});
  return out;
}

std::vector<PresetValue> maverick() {
  std::vector<PresetValue> out = published(128, 2);
  out.push_back({"qk_norm", false});
  return out;
}

const std::vector<Preset>& presets() {
  // clang-format off
  static const std::vector<Preset> all = {
      // layers, width, heads, key/value heads, feed-forward, positions, vocabulary; 0: the default
      nano("llama4-nano", 4, 128, 4, 2, 176),
      {"llama-4-scout-17b-16e",     48, 5120, 40, 8, 16384, 10485760, 202048, scout(), 128},
      {"llama-4-maverick-17b-128e", 48, 5120, 40, 8, 16384,  1048576, 202048, maverick(), 128},
  };
  // clang-format on
  return all;
}

MoeOptions::Router published_router() {
  MoeOptions::Router out;
  out.score = "sigmoid";
  out.normalize = false;
  out.weighs_inputs = true;
  return out;
}

struct Llama4Options final : DecoderOptions {
  Llama4Options() {
    moe.num_experts = 8;
    moe.top_k = 1;
    moe.shared = 1;
    moe.router = published_router();
    moe.losses.balance = 0.0;
  }
  std::int64_t no_rope_interval = 4;
  std::vector<double> no_rope_layers;
  std::int64_t attention_chunk = 0;
  bool qk_norm = true;
  double temperature_scale = 0.0;
  std::int64_t temperature_floor = 8192;

  [[nodiscard]] bool rotary(std::int64_t layer) const {
    if (!no_rope_layers.empty()) {
      return std::find(no_rope_layers.begin(), no_rope_layers.end(), static_cast<double>(layer)) ==
             no_rope_layers.end();
    }
    return no_rope_interval == 0 || (layer + 1) % no_rope_interval != 0;
  }
  [[nodiscard]] std::unique_ptr<FamilyOptions> clone() const override {
    return std::make_unique<Llama4Options>(*this);
  }

  void describe(config::Fields& fields) override {
    describe_shape(fields, presets(), {});
    describe_no_rope_interval(fields, no_rope_interval);
    fields.field("no_rope_layers",
                 no_rope_layers,
                 {.text = "Numbers of the layers without rotary positions, from 0; empty: those of "
                          "no_rope_interval.",
                  .min = 0,
                  .max = 1e6});
    fields.field("attention_chunk",
                 attention_chunk,
                 {.text = "In layers with rotary positions, tokens attend within chunks of this "
                          "length; 0: to all earlier tokens.",
                  .unit = "tokens",
                  .min = 0,
                  .max = 1e8});
    fields.field(
        "qk_norm",
        qk_norm,
        {.text = "Whether rotated queries and keys are divided by their root mean square."});
    fields.field("temperature_scale",
                 temperature_scale,
                 {.text = "In layers without rotary positions, the queries at position p are "
                          "multiplied by 1 + this value x log(1 + floor((p + 1) / "
                          "temperature_floor)).",
                  .min = 0,
                  .max = 1e6});
    fields.field("temperature_floor",
                 temperature_floor,
                 {.text = "See temperature_scale.", .unit = "tokens", .min = 1, .max = 1e9});
    describe_attention_bias(fields);
    describe_rest(fields);
  }
};

void specialize(const Llama4Options& options, DecoderShape& shape) {
  shape.rotary_interleaved = true;
  shape.norms_rotated = options.qk_norm;
  if (options.temperature_scale > 0) {
    shape.temperature =
        nn::Temperature{.scale = options.temperature_scale, .floor = options.temperature_floor};
  }
  for (std::int64_t i = 0; i < shape.num_layers; ++i) {
    const bool rotary = options.rotary(i);
    shape.layers.push_back({.chunk = rotary ? options.attention_chunk : 0, .rotary = rotary});
  }
}

const HfDecoder kHf = {.model_type = "llama4_text",
                       .architecture = "Llama4ForCausalLM",
                       .layers = 48,
                       .hidden = 5120,
                       .heads = 40,
                       .vocab = 202048,
                       .positions = 131072,
                       .ffn = 8192,
                       .kv_heads = 8,
                       .head_dim = 128,
                       .rms_norm_eps = 1e-5,
                       .rope_theta = 500000.0,
                       .has_attention_bias = true,
                       .has_experts = true};
constexpr const char *kChunked = "chunked_attention", *kFull = "full_attention";

/// The numbers of a list; they are those of layers.
std::vector<double> numbers_of(const HfConfig& keys, const char* key, std::int64_t layers) {
  std::vector<double> out;
  if (keys.empty(key)) return out;
  const json::Value& list = *keys.find(key);
  keys.refuse(key, list.is_array(), "a list of numbers of layers");
  for (const json::Value& one : list.items()) {
    const auto number = one.as_integer();
    keys.refuse(key, number && *number >= 0 && *number < layers, "a list of numbers of layers");
    out.push_back(static_cast<double>(*number));
  }
  return out;
}

void read_sparse_layers(const HfConfig& keys, Llama4Options& out) {
  const std::int64_t layers = out.num_layers.value();
  out.moe.every = keys.count("interleave_moe_layer_step", 1, 1e4);
  std::vector<double> sparse = numbers_of(keys, "moe_layers", layers), by_step;
  for (std::int64_t i = out.moe.every - 1; i < layers; i += out.moe.every)
    by_step.push_back(static_cast<double>(i));
  if (sparse.empty() || sparse == by_step) return;
  out.moe.every = 1;
  out.moe.layers = std::move(sparse);
}

void read_layers_without_rotary(const HfConfig& keys, Llama4Options& out) {
  if (const auto every = read_no_rope_interval(keys)) {
    out.no_rope_interval = *every;
    return;
  }
  const json::Value& turns = *keys.find("no_rope_layers");
  for (std::size_t i = 0; i < turns.items().size(); ++i) {
    if (turns.items()[i].as_integer().value_or(1) == 0)
      out.no_rope_layers.push_back(static_cast<double>(i));
  }
}

/// layer_types repeats which layers have rotary positions.
void check_layer_types(const HfConfig& keys, const Llama4Options& options) {
  if (keys.empty("layer_types")) return;
  const json::Value& types = *keys.find("layer_types");
  const std::int64_t layers = options.num_layers.value();
  bool same = types.is_array() && std::ssize(types.items()) == layers;
  for (std::int64_t i = 0; same && i < layers; ++i) {
    const json::Value& type = types.items()[static_cast<std::size_t>(i)];
    same = type.is_string() && type.as_string() == (options.rotary(i) ? kChunked : kFull);
  }
  keys.refuse("layer_types", same, "chunked_attention where no_rope_layers is 1");
}

void read(const HfConfig& keys, Llama4Options& out) {
  const std::int64_t width = *out.ffn_hidden_size;
  out.ffn_hidden_size = keys.count("intermediate_size_mlp", 16384, 1e7);
  out.moe.ffn_hidden_size = width;
  out.moe.num_experts = keys.count("num_local_experts", 16, 1e5);
  out.moe.top_k = keys.count("num_experts_per_tok", 1, 1e5);
  read_sparse_layers(keys, out);
  read_layers_without_rotary(keys, out);
  check_layer_types(keys, out);
  out.attention_chunk =
      keys.given("attention_chunk_size") ? keys.count_or_null("attention_chunk_size", 1e8) : 8192;
  out.qk_norm = keys.flag("use_qk_norm", true);
  // Published files have a number here.
  const json::Value* const tuned = keys.find("attn_temperature_tuning");
  const bool off =
      tuned != nullptr &&
      (tuned->is_number() ? tuned->as_double() == 0 : !keys.flag("attn_temperature_tuning", true));
  out.temperature_scale = off ? 0.0 : keys.number("attn_scale", 0.1, 0, 1e6);
  out.temperature_floor = keys.count("floor_scale", 8192, 1e9);
  refuse_jitter(keys, "router_jitter_noise");
}

void write(const Llama4Options& options, json::Value& out) {
  const char* const name = kHf.architecture.c_str();
  const std::int64_t width = expert_width(options);
  write_experts(options, name, published_router(), true, "num_local_experts", out);
  TESSERA_REQUIRE(options.moe.shared_width(width) == width && !options.moe.shared_gate &&
                      options.moe.losses.balance == 0 && !options.moe.router.normalize &&
                      options.moe.router.scale == 1 && options.moe.router.groups == 1,
                  Unsupported,
                  fmt::format("Hugging Face's {} has one shared expert of the width of the others, "
                              "and neither a balance loss nor groups or normalized weights",
                              name),
                  "leave the keys of model.moe at the family's defaults");
  out["intermediate_size"] = json::Value::integer(width);
  out["intermediate_size_mlp"] = json::Value::integer(*options.ffn_hidden_size);
  json::Value sparse = json::Value::array(), types = json::Value::array();
  std::vector<bool> rotary;
  for (std::int64_t i = 0; i < *options.num_layers; ++i) {
    if (options.moe.sparse(i)) sparse.push_back(json::Value::integer(i));
    rotary.push_back(options.rotary(i));
    types.push_back(json::Value::string(rotary.back() ? kChunked : kFull));
  }
  out["moe_layers"] = std::move(sparse);
  out["interleave_moe_layer_step"] = json::Value::integer(options.moe.every);
  write_no_rope(rotary, options.no_rope_interval, out);
  out["layer_types"] = std::move(types);
  out["attention_chunk_size"] =
      options.attention_chunk > 0 ? json::Value::integer(options.attention_chunk) : json::Value();
  out["use_qk_norm"] = json::Value::boolean(options.qk_norm);
  out["attn_temperature_tuning"] = json::Value::boolean(options.temperature_scale > 0);
  out["attn_scale"] = real_to_hf(options.temperature_scale > 0 ? options.temperature_scale : 0.1);
  out["floor_scale"] = json::Value::integer(options.temperature_floor);
  out["router_jitter_noise"] = real_to_hf(0.0);
}

/// Files store experts as [E, C, 2 F] with the gates first, and as [E, F, C].
Composition compose(const ParamInfo& info) {
  constexpr std::string_view kOurs = ".mlp.", kTheirs = ".feed_forward.";
  static const ExpertNames names = {.router = "feed_forward.router",
                                    .shared = "feed_forward.shared_expert"};
  const Shape& shape = info.shape;
  std::string theirs = "model." + info.name.substr(0, info.name.rfind('.'));
  const std::size_t at = theirs.find(kOurs);
  if (at == std::string::npos) return compose_decoder(info);
  theirs.replace(at, kOurs.size(), kTheirs);
  if (theirs.ends_with(".experts.gate_up_proj")) {
    return Composition::of(theirs, {shape[0], shape[3], 2 * shape[2]})
        .viewed({shape[0], shape[3], 2, shape[2]})
        .permuted({0, 2, 3, 1});
  }
  if (theirs.ends_with(".experts.down_proj"))
    return Composition::of(theirs, {shape[0], shape[2], shape[1]}).permuted({0, 2, 1});
  if (is_of_experts(info)) return compose_experts(info, "model.", names);
  ParamInfo dense = info;
  dense.name.replace(dense.name.find(kOurs), kOurs.size(), kTheirs);
  return compose_decoder(dense);
}

WeightMap weight_map() {
  WeightMap out = decoder_weights(compose);
  out.known_as = without_text_prefix;
  out.may_be_unused = [](std::string_view name) {
    return name.starts_with("vision_model.") || name.starts_with("multi_modal_projector.");
  };
  return out;
}

TESSERA_MODEL("llama4_text",
              DecoderFamilyOf<Llama4Options>{.presets = presets(),
                                             .hf = kHf,
                                             .specialize = specialize,
                                             .read = read,
                                             .write = write,
                                             .weight_map = weight_map(),
                                             .text_of = {"llama4"},
                                             .adjustable = adjustable_with_experts()});

/// Layers with experts by their interval, and those without rotary positions by a fixed one.
/// Queries and keys of all models but those of 128 experts are normed.
GgufNames::Values derived_llama4_gguf(const json::Value& config) {
  const auto count = [&](const char* key, std::int64_t otherwise) {
    const json::Value* const value = config.find(key);
    return value != nullptr ? value->as_integer().value_or(otherwise) : otherwise;
  };
  const std::int64_t layers = count("num_hidden_layers", kHf.layers),
                     every = std::max<std::int64_t>(count("interleave_moe_layer_step", 1), 1);
  json::Value rotary = json::Value::array(), types = rotary, sparse = rotary;
  for (std::int64_t i = 0; i < layers; ++i) {
    const bool turns = (i + 1) % 4 != 0;
    rotary.push_back(json::Value::integer(turns ? 1 : 0));
    types.push_back(json::Value::string(turns ? kChunked : kFull));
    if ((i + 1) % every == 0) sparse.push_back(json::Value::integer(i));
  }
  return {{"no_rope_layers", std::move(rotary)},
          {"layer_types", std::move(types)},
          {"moe_layers", std::move(sparse)},
          {"use_qk_norm", json::Value::boolean(count("num_local_experts", 16) != 128)}};
}

TESSERA_GGUF_NAMES("llama4", [] {
  GgufNames names = rotary_decoder_names(kHf.architecture, kHf.model_type);
  for (GgufNames::Key& key : names.keys) {
    if (key.gguf == "feed_forward_length") key.config = "intermediate_size_mlp";
  }
  names.keys.push_back({"expert_feed_forward_length", "intermediate_size"});
  names.keys.push_back({"interleave_moe_layer_step", "interleave_moe_layer_step"});
  for (const auto& [key, value] : {std::pair("attention_chunk_size", json::Value::integer(8192)),
                                   std::pair("attn_temperature_tuning", json::Value::boolean(true)),
                                   std::pair("attn_scale", json::Value::number(0.1)),
                                   std::pair("floor_scale", json::Value::integer(8192)),
                                   std::pair("attention_bias", json::Value::boolean(false))})
    names.implied.emplace_back(key, value);
  names.derived = derived_llama4_gguf;
  // 0 would be attention without chunks.
  names.constants = {{kGgufWindow, 8192}};
  names.rotary_factors = true;
  const std::string module = "model.layers.*.feed_forward";
  for (const std::string projection : {"gate", "up", "down"}) {
    set_module(names, "blk.*.ffn_" + projection, module + "." + projection + "_proj");
    set_module(names,
               "blk.*.ffn_" + projection + "_shexp",
               module + ".shared_expert." + projection + "_proj");
  }
  add_experts(names, {.router = module + ".router", .count_key = "num_local_experts"});
  names.stacked.clear();
  using Parts = GgufNames::Parts;
  names.parts = {Parts{.theirs = module + ".experts.gate_up_proj",
                       .files = {"blk.*.ffn_gate_exps.weight", "blk.*.ffn_up_exps.weight"},
                       .transposed = true},
                 Parts{.theirs = module + ".experts.down_proj",
                       .files = {"blk.*.ffn_down_exps.weight"},
                       .transposed = true}};
  return names;
}());

}  // namespace
}  // namespace tessera::models
