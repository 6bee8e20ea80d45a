// SPDX-License-Identifier: Apache-2.0
// Models that a configuration composes from parts (models/composed.h), with TencentPretrain's keys
// and names.
#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tessera/base/error.h"
#include "tessera/models/compose_options.h"
#include "tessera/models/composed.h"
#include "tessera/models/family.h"
#include "tessera/models/hf_config.h"
#include "tessera/models/megatron_names.h"
#include "tessera/ops/activation.h"

namespace tessera::models {
namespace {

ComposedOrder order_of(const std::string& position) {
  if (position == "relative") return ComposedOrder::Relative;
  return position == "rotary" ? ComposedOrder::Rotary : ComposedOrder::Embedding;
}

bool has(const std::vector<std::string>& list, std::string_view word) {
  return std::ranges::find(list, word) != list.end();
}

/// Checks and sets the options of image models, whose parts must see all patches of an image.
void set_images(const ComposeOptions& options, ComposedShape& shape, Checks& checks) {
  const bool images = shape.embedding.patches;
  const auto refuse = [&](bool given, const char* key) {
    checks.require(images || !given,
                   std::string("model.") + key,
                   "the model reads tokens, and no images",
                   "set embedding to [\"patch\", \"pos\"], or remove it");
  };
  refuse(options.image_size.has_value(), "image_size");
  refuse(options.patch_size.has_value(), "patch_size");
  refuse(options.num_channels.has_value(), "num_channels");
  if (!images) return;
  shape.image_size = options.image_size.value_or(shape.image_size);
  shape.patch_size = options.patch_size.value_or(shape.patch_size);
  shape.num_channels = options.num_channels.value_or(shape.num_channels);
  checks.require(!shape.embedding.segments && shape.embedding.position_offset == 0,
                 "model.embedding",
                 "an image has no segments and no padding",
                 "set embedding to [\"patch\", \"pos\"] and position_offset to 0");
  checks.require(options.position != "rotary",
                 "model.position",
                 "rotary positions count the tokens of a text, and the model reads images",
                 "set position to embedding or relative");
  checks.require(options.decoder == "none" && options.mask == "fully_visible" &&
                     options.target == std::vector<std::string>{"cls"},
                 "model.target",
                 "an image is classified by an encoder that sees all of it",
                 "set target to [\"cls\"], mask to fully_visible and decoder to none");
  const bool divides = shape.image_size % shape.patch_size == 0;
  checks.require(
      divides,
      "model.patch_size",
      fmt::format(
          "patch_size {} does not divide image_size {}", shape.patch_size, shape.image_size),
      "choose a divisor");
  if (!divides) shape.patch_size = shape.image_size;
  const std::int64_t tokens = patches_of(shape).tokens();
  shape.max_positions = options.max_positions.value_or(tokens);
  checks.require(shape.max_positions >= tokens,
                 "model.max_positions",
                 fmt::format("max_positions {} is fewer than the {} tokens of an image, one per "
                             "patch and one for the class",
                             shape.max_positions,
                             tokens),
                 "remove max_positions");
}

void set_parts(const ComposeOptions& options, ComposedShape& shape, Checks& checks) {
  const auto& embedding = options.embedding;
  const bool decoder = options.decoder != "none";
  shape.embedding = {.words = has(embedding, "word"),
                     .patches = has(embedding, "patch"),
                     .positions = has(embedding, "pos"),
                     .segments = has(embedding, "seg"),
                     .position_offset = options.position_offset,
                     .norm = options.embedding_norm.value_or(options.norm_position == "post")};
  const bool known = options.check_embedding(checks);
  checks.require(
      !known || shape.embedding.words != shape.embedding.patches,
      "model.embedding",
      "the embedding needs either \"word\", to read tokens, or \"patch\", to read images",
      "name one of the two");
  checks.require(!decoder || options.mask == "fully_visible",
                 "model.mask",
                 "the encoder before a decoder sees all of its text",
                 "set mask to fully_visible");
  const auto heads = [&](std::string_view word) { return has(options.target, word); };
  checks.require(!decoder || (!heads("mlm") && !heads("sp") && !heads("cls")),
                 "model.target",
                 "a decoder has the head \"lm\" alone",
                 "set target to [\"lm\"]");
  checks.require(!heads("lm") || decoder || options.mask != "fully_visible",
                 "model.target",
                 "\"lm\" predicts the next token, which a fully visible encoder sees",
                 "set mask to causal, or target to [\"mlm\"]");
  checks.require(!heads("mlm") || options.mask == "fully_visible",
                 "model.target",
                 "\"mlm\" predicts masked tokens from both sides, and the mask is causal",
                 "set mask to fully_visible, or target to [\"lm\"]");
  set_images(options, shape, checks);
  shape.pooler = options.pooler;
  checks.require(options.pooler || heads("sp") || heads("cls"),
                 "model.pooler",
                 "the model has no head for whole samples",
                 "add \"cls\" to model.target, or remove pooler");
  checks.require(!options.lm_bias || heads("lm"),
                 "model.lm_bias",
                 "the model has no head for the next token",
                 "add \"lm\" to model.target, or remove lm_bias");
  shape.lm_bias = options.lm_bias && heads("lm");
  shape.masked_lm = heads("mlm");
  shape.pair_head = heads("sp");
  shape.sample_head = heads("cls") ? "cls" : heads("sp") ? "sp" : "";
}

void set_layers_of(const ComposeOptions& options, ComposedShape& shape, Checks& checks) {
  shape.causal = options.mask != "fully_visible";
  shape.prefix = options.mask == "causal_with_prefix";
  shape.residual =
      options.norm_position == "pre" ? ResidualOrder::PreNorm : ResidualOrder::PostNorm;
  shape.norm = options.norm == "layer_norm" ? NormKind::LayerNorm : NormKind::RmsNorm;
  shape.norm_eps = options.norm_eps;
  shape.gated = options.feed_forward == "gated";
  shape.activation = options.activation;
  shape.bias = options.bias;
  shape.scale_attention = options.scale_attention;
  shape.order = order_of(options.position);
  shape.buckets = options.position_buckets;
  shape.max_distance = options.position_max_distance;
  shape.rope_theta = options.rope_theta;
  if (options.head_dim) {
    shape.head_dim = *options.head_dim;
  } else {
    check_heads(shape, checks);
    shape.head_dim = shape.hidden_size / std::max<std::int64_t>(shape.num_heads, 1);
  }
  checks.require(shape.num_kv_heads == shape.num_heads,
                 "model.num_kv_heads",
                 "heads of this family share no keys and values",
                 "remove num_kv_heads");
  checks.require(
      shape.order != ComposedOrder::Rotary || shape.head_dim % 2 == 0,
      "model.head_dim",
      fmt::format("rotary positions turn pairs of channels, and a head has {}", shape.head_dim),
      "choose an even number of channels");
  options.set_other_forms(shape, checks);
  checks.require(shape.order != ComposedOrder::Relative || shape.max_distance > shape.buckets / 2,
                 "model.position_max_distance",
                 fmt::format("position_max_distance {} lies among the distances that have one of "
                             "{} buckets each",
                             shape.max_distance,
                             shape.buckets),
                 fmt::format("set at least {}, or fewer position_buckets", shape.buckets / 2 + 1));
}

void set_decoder(const ComposeOptions& options, ComposedShape& shape, Checks& checks) {
  const bool decoder = options.decoder != "none";
  shape.num_decoder_layers = decoder ? options.num_decoder_layers.value_or(shape.num_layers) : 0;
  checks.require(decoder || !options.num_decoder_layers,
                 "model.num_decoder_layers",
                 "the model has no decoder",
                 "set decoder to transformer, or remove num_decoder_layers");
  checks.require(decoder || !options.scale_output,
                 "model.scale_output",
                 "the model has no decoder",
                 "set decoder to transformer, or remove scale_output");
  shape.scale_output = options.scale_output;
  shape.start_token = options.start_token;
  shape.pad_token = options.pad_token;
  shape.tie_embeddings = options.tie_embeddings && !shape.embedding.patches;
  shape.dropout = options.dropout;
  shape.init_std = options.init_std;
}

json::Value description_of(const ComposeOptions& options, const ComposedShape& shape) {
  auto out = std::make_unique<ComposeOptions>(options);
  out->preset.reset();
  out->from.reset();
  out->num_layers = shape.num_layers;
  out->hidden_size = shape.hidden_size;
  out->num_heads = shape.num_heads;
  out->num_kv_heads.reset();
  if (shape.embedding.words) out->vocab_size = shape.vocab_size;
  out->max_positions = shape.max_positions;
  out->ffn_hidden_size = shape.ffn_hidden_size;
  out->head_dim = shape.head_dim;
  if (shape.writes()) out->num_decoder_layers = shape.num_decoder_layers;
  if (shape.embedding.patches) {
    out->image_size = shape.image_size;
    out->patch_size = shape.patch_size;
    out->num_channels = shape.num_channels;
  }
  out->embedding_norm = shape.embedding.norm;
  ModelOptions whole("compose", std::move(out));
  return options.described(config::write(whole));
}

/// The objective that trains the first head.
std::string objective_of(const ComposeOptions& options, const ComposedShape& shape) {
  const std::string first = options.target.empty() ? "lm" : options.target.front();
  if (first == "mlm") return "masked_lm";
  if (shape.embedding.patches) return "image_classification";
  if (first != "lm") return "sequence_classification";
  if (shape.prefix) return "prefix_lm";
  return shape.writes() ? "seq2seq" : "causal_lm";
}

Resolved resolve_compose(const ComposeOptions& options,
                         std::int64_t tokenizer_size,
                         std::optional<std::int64_t> sequence_length,
                         config::Problems& problems,
                         const config::Origins& origins) {
  Checks checks(problems, origins);
  ComposedShape shape;
  const std::string otherwise = composed_presets().front().name;
  const Preset* preset = find_preset(options, composed_presets(), otherwise, checks);
  set_layers(options, preset, shape, checks);
  shape.ffn_hidden_size = options.ffn_hidden_size.value_or(4 * shape.hidden_size);
  const bool images = has(options.embedding, "patch");
  if (images) {
    shape.vocab_size = shape.tokenizer_size = tokenizer_size;
  } else {
    set_positions(options, preset, sequence_length, shape, checks);
    set_vocabulary(options, tokenizer_size, shape, checks);
  }
  set_parts(options, shape, checks);
  set_layers_of(options, shape, checks);
  set_decoder(options, shape, checks);
  // If the shape was refused, a decoder of possible sizes is listed instead.
  ComposedShape usable = shape;
  if (!problems.empty()) {
    make_possible(usable);
    usable.head_dim = std::max<std::int64_t>(usable.head_dim + usable.head_dim % 2, 2);
    usable.num_decoder_layers = 0;
    usable.masked_lm = usable.pair_head = usable.prefix = false;
    usable.causal = true;
    usable.order = ComposedOrder::Embedding;
    usable.embedding = {};
  }
  Resolved out = {.description = description_of(options, shape),
                  .trunk = composed_trunk(usable),
                  .vocab_size = shape.vocab_size,
                  .tokenizer_size = shape.tokenizer_size,
                  .max_positions = shape.max_positions,
                  .num_layers = shape.num_layers + shape.num_decoder_layers,
                  .hidden_size = shape.hidden_size,
                  .num_heads = shape.num_heads,
                  .num_kv_heads = shape.num_heads,
                  .tied_head = shape.tie_embeddings};
  out.objective.name = problems.empty() ? objective_of(options, shape) : "causal_lm";
  if (options.label_smoothing > 0)
    out.objective_options["label_smoothing"] = json::Value::number(options.label_smoothing);
  out.derivations = derivations_of(options, otherwise, shape);
  return out;
}

std::vector<std::string> words_of(const HfConfig& keys, const char* key) {
  const json::Value* found = keys.find(key);
  std::vector<std::string> out;
  if (found == nullptr) return out;
  const bool list = found->is_array() && std::ranges::all_of(found->items(), [](const auto& item) {
                      return item.is_string();
                    });
  keys.refuse(key, list, "a list of words");
  for (const json::Value& item : found->items())
    out.push_back(item.as_string());
  return out;
}

/// The implemented values; others are refused by name.
std::vector<std::string> known_words(const HfConfig& keys,
                                     const char* key,
                                     const std::vector<std::string>& known) {
  std::vector<std::string> out = words_of(keys, key);
  for (const std::string& word : out) {
    const bool sounds = word == "speech";
    keys.refuse(key,
                has(known, word),
                fmt::format("{} of {}{}",
                            key,
                            fmt::join(known, ", "),
                            sounds ? ", because models of speech are not built" : "")
                    .c_str());
  }
  return out;
}

ComposeOptions from_hf(const json::Value& config) {
  const HfConfig keys(config);
  static constexpr std::array kSwitches = {
      "factorized_embedding_parameterization", "parameter_sharing", "has_residual_attention"};
  for (const char* key : kSwitches)
    keys.refuse(key, !keys.flag(key, false), fmt::format("{} false", key).c_str());
  for (const char* key : {"local_kv_heads_num", "lora_params"})
    keys.refuse(key, keys.empty(key), fmt::format("no {}", key).c_str());
  ComposeOptions out;
  out.hidden_size = keys.count("hidden_size", 768, 1e6);
  keys.refuse("emb_size",
              keys.count("emb_size", *out.hidden_size, 1e6) == *out.hidden_size,
              "emb_size equal to hidden_size");
  out.num_layers = keys.count("layers_num", 12, 1e4);
  out.num_heads = keys.count("heads_num", 12, 1e6);
  out.ffn_hidden_size = keys.count("feedforward_size", 3072, 1e7);
  if (keys.given("attention_head_size")) out.head_dim = keys.count("attention_head_size", 64, 1e6);
  out.max_positions = keys.count("max_seq_length", 512, 1e8);
  out.dropout = keys.number("dropout", 0.1, 0, kMaxDropout);
  out.embedding = known_words(keys, "embedding", composed_embeddings());
  if (has(out.embedding, "patch")) {
    out.image_size = keys.count("image_height", 224, 1e5);
    keys.refuse("image_width",
                keys.count("image_width", *out.image_size, 1e5) == *out.image_size,
                "image_width equal to image_height");
    out.patch_size = keys.count("patch_size", 16, 1e5);
    out.num_channels = keys.count("channels_num", 3, 1e4);
  } else {
    for (const char* key : {"image_height", "patch_size"})
      keys.refuse(key, keys.empty(key), fmt::format("no {}", key).c_str());
    keys.refuse("vocab_size", keys.given("vocab_size"), "the number of tokens as vocab_size");
    out.vocab_size = keys.count("vocab_size", 1, 1e8);
  }
  out.pooler = !keys.flag("remove_pooler", false);
  keys.refuse("pooling", keys.word("pooling", "first") == "first", "pooling first");
  out.position_offset = static_cast<std::int64_t>(keys.number("position_offset", 0, 0, 1e6));
  out.target = known_words(keys, "target", {"lm", "mlm", "sp", "cls"});
  const std::string encoder = keys.word("encoder", "transformer");
  keys.refuse("encoder", encoder == "transformer", "encoder transformer");
  if (keys.given("decoder")) {
    keys.refuse("decoder", keys.word("decoder", "") == "transformer", "decoder transformer");
    out.decoder = "transformer";
    out.num_decoder_layers = keys.count("decoder_layers_num", *out.num_layers, 1e4);
    keys.refuse("tgt_embedding",
                out.embedding == words_of(keys, "tgt_embedding"),
                "tgt_embedding equal to embedding");
    keys.refuse("share_embedding", keys.flag("share_embedding", false), "share_embedding true");
  }
  const std::string mask = keys.word("mask", "fully_visible");
  keys.refuse("mask",
              mask == "causal" || mask == "fully_visible" || mask == "causal_with_prefix",
              "mask causal, causal_with_prefix or fully_visible");
  // The task prefix_lm learns only the tokens after the prefix.
  keys.refuse("prefix_lm_loss",
              mask == "causal_with_prefix" || !keys.flag("prefix_lm_loss", false),
              "prefix_lm_loss false, or mask causal_with_prefix");
  out.mask = mask;
  const std::string place = keys.word("layernorm_positioning", "post");
  keys.refuse("layernorm_positioning", place == "pre" || place == "post", "pre or post");
  out.norm_position = place;
  const std::string layernorm = keys.word("layernorm", "normal");
  const bool rms = layernorm == "t5" || layernorm == "rms";
  keys.refuse("layernorm", rms || layernorm == "normal", "layernorm normal, t5 or rms");
  out.norm = rms ? "rms" : "layer_norm";
  out.norm_eps = keys.number("layernorm_eps", 1e-6, 1e-30, 1);
  out.embedding_norm = !keys.flag("remove_embedding_layernorm", false);
  const std::string feed = keys.word("feed_forward", "dense");
  keys.refuse("feed_forward", feed == "dense" || feed == "gated", "feed_forward dense or gated");
  out.feed_forward = feed;
  const std::string act = keys.word("hidden_act", "gelu");
  const auto known = std::ranges::find_if(
      kActivations, [&](const auto& pair) { return pair.first == act && !pair.second.empty(); });
  keys.refuse("hidden_act", known != kActivations.end(), "gelu, gelu_fast, relu or silu");
  out.activation = known->second;
  out.bias = !keys.flag("remove_transformer_bias", false);
  out.scale_attention = !keys.flag("remove_attention_scale", false);
  const bool relative = keys.flag("relative_position_embedding", false),
             rotary = keys.flag("rotary_position_embedding", false);
  keys.refuse("rotary_position_embedding", !(relative && rotary), "one kind of positions");
  out.position = relative ? "relative" : rotary ? "rotary" : "embedding";
  out.position_buckets = keys.count("relative_attention_buckets_num", 32, 1e5);
  out.position_max_distance = keys.count("relative_attention_max_distance", 128, 1e8);
  out.rope_theta = keys.number("rope_theta", 10000.0, 1, 1e12);
  out.tie_embeddings = keys.flag("tie_weights", false);
  out.lm_bias = keys.flag("has_lmtarget_bias", false) && has(out.target, "lm");
  out.scale_output = keys.flag("scale_output", false);
  out.start_token = static_cast<std::int64_t>(keys.number("start_token", 0, 0, 1e8));
  out.pad_token = static_cast<std::int64_t>(keys.number("pad_token", 0, 0, 1e8));
  out.init_std = keys.number("initializer_range", 0.02, 0, 100);
  return out;
}

json::Value words(const std::vector<std::string>& list) {
  std::vector<json::Value> out;
  for (const std::string& word : list)
    out.push_back(json::Value::string(word));
  return json::Value::array(std::move(out));
}

json::Value to_hf(const ComposeOptions& options) {
  const auto integer = [](const std::optional<std::int64_t>& value) {
    return json::Value::integer(value.value());
  };
  const auto text = [](std::string_view word) { return json::Value::string(std::string(word)); };
  const auto flag = [](bool value) { return json::Value::boolean(value); };
  const auto known = std::ranges::find_if(
      kActivations, [&](const auto& pair) { return pair.second == options.activation; });
  TESSERA_REQUIRE(known != kActivations.end(),
                  Unsupported,
                  fmt::format("model.activation {} has no name in TencentPretrain's configuration",
                              options.activation),
                  "train with gelu, gelu_tanh, relu or silu");
  options.refuse_to_publish();
  json::Value out = json::Value::object(
      {{"model_type", text("compose")},
       {"emb_size", integer(options.hidden_size)},
       {"hidden_size", integer(options.hidden_size)},
       {"feedforward_size", integer(options.ffn_hidden_size)},
       {"heads_num", integer(options.num_heads)},
       {"attention_head_size", integer(options.head_dim)},
       {"layers_num", integer(options.num_layers)},
       {"max_seq_length", integer(options.max_positions)},
       {"hidden_act", text(known->first)},
       {"dropout", json::Value::number(options.dropout)},
       {"embedding", words(options.embedding)},
       {"position_offset", json::Value::integer(options.position_offset)},
       {"remove_embedding_layernorm", flag(!options.embedding_norm.value())},
       {"encoder", text(options.encoder)},
       {"mask", text(options.mask)},
       {"layernorm_positioning", text(options.norm_position)},
       {"layernorm", text(options.norm == "rms" ? "t5" : "normal")},
       {"layernorm_eps", json::Value::number(options.norm_eps)},
       {"feed_forward", text(options.feed_forward)},
       {"remove_transformer_bias", flag(!options.bias)},
       {"remove_attention_scale", flag(!options.scale_attention)},
       {"relative_position_embedding", flag(options.position == "relative")},
       {"relative_attention_buckets_num", json::Value::integer(options.position_buckets)},
       {"relative_attention_max_distance", json::Value::integer(options.position_max_distance)},
       {"rotary_position_embedding", flag(options.position == "rotary")},
       {"rope_theta", json::Value::number(options.rope_theta)},
       {"target", words(options.target)},
       {"tie_weights", flag(options.tie_embeddings)},
       {"initializer_range", json::Value::number(options.init_std)}});
  if (options.vocab_size) out["vocab_size"] = integer(options.vocab_size);
  if (options.image_size) {
    out["image_height"] = integer(options.image_size);
    out["image_width"] = integer(options.image_size);
    out["patch_size"] = integer(options.patch_size);
    out["channels_num"] = integer(options.num_channels);
  }
  if (!options.pooler) out["remove_pooler"] = flag(true);
  if (options.lm_bias) out["has_lmtarget_bias"] = flag(true);
  if (options.decoder == "none") return out;
  out["decoder"] = text(options.decoder);
  out["decoder_layers_num"] = integer(options.num_decoder_layers);
  out["tgt_embedding"] = words(options.embedding);
  out["share_embedding"] = flag(true);
  out["scale_output"] = flag(options.scale_output);
  out["start_token"] = json::Value::integer(options.start_token);
  out["pad_token"] = json::Value::integer(options.pad_token);
  return out;
}

/// TencentPretrain's names are the same, except that it stores the projections of one input
/// separately.
Composition compose(const ParamInfo& info) {
  const Shape& shape = info.shape;
  const auto joined = [&](std::string_view ours, const std::vector<std::string>& theirs) {
    Shape stored = {info.numel() / shape.front()}, here = shape;
    const bool matrix = info.name.ends_with(".weight");
    if (matrix) stored = {stored.front() / shape.back(), shape.back()};
    here.front() = 1;
    std::vector<Composition> parts;
    for (const std::string& its : theirs) {
      std::string name = info.name;
      name.replace(name.rfind(ours), ours.size(), its);
      parts.push_back(Composition::of(std::move(name), stored).viewed(here));
    }
    return Composition::concat(parts, 0);
  };
  if (info.name == "embedding.patch.cls_emb")
    return Composition::of(info.name, {1, shape[0], shape[1]}).viewed(shape);
  if (info.name.starts_with("lm_head."))
    return Composition::of("target.lm.output_layer" + info.name.substr(info.name.find('.')), shape);
  const auto contains = [&](std::string_view part) {
    return info.name.find(part) != std::string::npos;
  };
  if (contains("self_attn.qkv."))
    return joined(".qkv.", {".linear_layers.0.", ".linear_layers.1.", ".linear_layers.2."});
  if (contains("context_attn.q.")) return joined(".q.", {".linear_layers.0."});
  if (contains("context_attn.kv."))
    return joined(".kv.", {".linear_layers.1.", ".linear_layers.2."});
  if (contains("feed_forward.gated_linear."))
    return joined(".gated_linear.", {".linear_gate.", ".linear_1."});
  return Composition::of(info.name, shape);
}

/// TencentPretrain names the parameters of a norm gamma and beta, and the layers of a classifier
/// without the head that they are.
std::string known_as(std::string name) {
  for (const auto& [old, known] :
       {std::pair<std::string_view, std::string_view>{"output_layer_1.", "target.cls.linear_1."},
        {"output_layer_2.", "target.cls.linear_2."}}) {
    if (name.starts_with(old)) return std::string(known) + name.substr(old.size());
  }
  for (const auto& [old, known] :
       {std::pair<std::string_view, std::string_view>{".gamma", ".weight"}, {".beta", ".bias"}})
    if (name.ends_with(old)) name.replace(name.size() - old.size(), old.size(), known);
  return name;
}

TESSERA_MODEL(
    "compose",
    FamilyOf<ComposeOptions>{
        .presets = composed_presets(),
        .adjustable = {{"dropout"}, {"init_std"}, {"label_smoothing"}},
        .resolve = resolve_compose,
        .from_hf = from_hf,
        .to_hf = to_hf,
        .weight_map = {
            .compose = compose,
            .ties = {{"target.lm.output_layer.weight", "embedding.word.embedding.weight"},
                     {"target.mlm.linear_2.weight",
                      "embedding.word.embedding.weight",
                      "target.mlm.linear_2.bias"},
                     {"tgt_embedding.word.embedding.weight", "embedding.word.embedding.weight"}},
            .anchor = "encoder.transformer.0.self_attn.final_linear.weight",
            .known_as = known_as,
            // Files contain all heads of the training that produced them.
            .may_be_unused = [](std::string_view name) { return name.starts_with("target."); }}});

/// Megatron-LM's T5: learned positions, layer norms before the branches, and biases.
json::Value of_megatron(const json::Value& facts) {
  const auto count = [&](const char* key) { return facts.find(key)->as_integer(); };
  const auto real = [&](const char* key) { return facts.find(key)->as_double(); };
  ComposeOptions out;
  out.vocab_size = count("vocab_size");
  out.hidden_size = count("hidden_size");
  out.ffn_hidden_size = count("ffn_hidden_size");
  out.num_layers = count("num_layers");
  out.num_decoder_layers = count("num_decoder_layers");
  out.num_heads = count("num_heads");
  out.head_dim = *out.hidden_size / *out.num_heads;
  out.max_positions = count("max_positions");
  out.embedding_norm = false;
  out.decoder = "transformer";
  out.mask = "fully_visible";
  out.norm_eps = real("norm_eps");
  out.activation = HfConfig(facts).activation("activation", "gelu");
  out.dropout = real("dropout");
  out.init_std = real("init_std");
  out.tie_embeddings = facts.find("tie_embeddings")->as_bool();
  out.lm_bias = facts.find("head_bias")->as_bool();
  return to_hf(out);
}

TESSERA_MEGATRON_LEARNED("compose",
                         {.table = "embedding.word.embedding.weight",
                          .positions = {"embedding.pos.embedding.weight",
                                        "tgt_embedding.pos.embedding.weight"},
                          .encoder = {.layers = "encoder.transformer",
                                      .attention_norm = "layer_norm_1",
                                      .queries = "self_attn.linear_layers.0",
                                      .keys = "self_attn.linear_layers.1",
                                      .values = "self_attn.linear_layers.2",
                                      .attention_output = "self_attn.final_linear",
                                      .mlp_norm = "layer_norm_2",
                                      .mlp_input = "feed_forward.linear_1",
                                      .mlp_output = "feed_forward.linear_2",
                                      .final_norm = "encoder.layer_norm"},
                          .decoder = {.layers = "decoder.transformer_decoder",
                                      .attention_norm = "layer_norm_1",
                                      .queries = "self_attn.linear_layers.0",
                                      .keys = "self_attn.linear_layers.1",
                                      .values = "self_attn.linear_layers.2",
                                      .attention_output = "self_attn.final_linear",
                                      .cross_norm = "layer_norm_2",
                                      .cross_queries = "context_attn.linear_layers.0",
                                      .cross_keys = "context_attn.linear_layers.1",
                                      .cross_values = "context_attn.linear_layers.2",
                                      .cross_output = "context_attn.final_linear",
                                      .mlp_norm = "layer_norm_3",
                                      .mlp_input = "feed_forward.linear_1",
                                      .mlp_output = "feed_forward.linear_2",
                                      .final_norm = "decoder.layer_norm"},
                          .head = "target.lm.output_layer.weight",
                          .head_bias = "target.lm.output_layer.bias",
                          .config_of = of_megatron});

}  // namespace
}  // namespace tessera::models
