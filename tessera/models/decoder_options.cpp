// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/decoder_options.h"

#include <algorithm>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/ops/activation.h"

namespace tessera::models {

namespace {

constexpr const char* kBiasOfFour = "Whether the four projections of attention have biases.";

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

void DecoderOptions::describe_attention_bias(config::Fields& fields, std::string text) {
  fields.field(
      "attention_bias", attention_bias, {.text = text.empty() ? kBiasOfFour : std::move(text)});
}

void DecoderOptions::describe_mlp_bias(config::Fields& fields) {
  fields.field(
      "mlp_bias", mlp_bias, {.text = "Whether the three projections of the MLP have biases."});
}

void DecoderOptions::describe_no_rope_interval(config::Fields& fields,
                                               std::int64_t& no_rope_interval) {
  fields.field("no_rope_interval",
               no_rope_interval,
               {.text = "Every n-th layer has no rotary positions; 0: all layers have them.",
                .unit = "layers",
                .min = 0,
                .max = 1e6});
}

void DecoderOptions::describe_factor(config::Fields& fields,
                                     const char* key,
                                     double& value,
                                     const char* text) {
  fields.field(key, value, {.text = text, .min = 0, .max = 1e6, .above_min = true});
}

void DecoderOptions::describe_rotary_share(config::Fields& fields) {
  fields.field("rotary_share",
               rotary_share,
               {.text = "Share of a head's channels that rotary positions rotate.",
                .min = 0,
                .max = 1,
                .above_min = true});
}

void DecoderOptions::describe_windows(config::Fields& fields) {
  fields.field("sliding_window",
               sliding_window,
               {.text = "Number of tokens that a token attends to, including itself, in layers "
                        "with a sliding window; 0 disables the windows.",
                .unit = "tokens",
                .min = 0,
                .max = 1e8});
  fields.field("layer_types",
               layer_types,
               {.text = "Kind of attention of each layer; empty: the family's rule.",
                .choices = {kSlidingAttention, kFullAttention}});
}

void DecoderOptions::describe_rest(config::Fields& fields) {
  describe_tie(fields);
  fields.field("activation",
               activation,
               {.text = "Activation function of the gate.", .choices = ops::activation_names()});
  fields.field("attention_dropout",
               attention_dropout,
               {.text = "Dropout probability on attention weights.", .min = 0, .max = kMaxDropout});
  describe_classifier_dropout(fields, classifier_dropout, "0.1");
  fields.field("rms_norm_eps",
               rms_norm_eps,
               {.text = "Epsilon added to the mean square in RMS norms.",
                .min = 0,
                .max = 1,
                .above_min = true});
  describe_init(fields, "Standard deviation of initial weights.");
  describe_label_smoothing(fields);
  describe_from(fields);
  fields.section("moe", moe, kMoeSentence);
}

namespace {

void set_common(const DecoderOptions& options, DecoderShape& shape) {
  shape.head_dim = options.head_dim.value_or(shape.head_dim);
  shape.rotary_share = options.rotary_share;
  shape.attention_bias = shape.output_bias = options.attention_bias;
  shape.mlp_bias = options.mlp_bias;
  shape.tie_embeddings = options.tie_embeddings;
  shape.activation = options.activation;
  shape.attention_dropout = options.attention_dropout;
  shape.classifier_dropout = options.classifier_dropout.value_or(kClassifierDropout);
  shape.rms_norm_eps = options.rms_norm_eps;
  shape.init_std = options.init_std;
}

/// Sets frequencies, and the positions that those for long texts have.
void set_rotation(const DecoderOptions& options,
                  std::optional<std::int64_t> sequence_length,
                  DecoderShape& shape,
                  Checks& checks) {
  const std::int64_t channels = shape.num_heads > 0 ? shape.rotary_channels() : 0;
  shape.rotation = rotation_of(options, channels, checks);
  const RotaryOptions* const local = options.local_rotary();
  if (local != nullptr) {
    RotaryOptions same_length = *local;
    same_length.rope_length = options.rope_length;
    shape.local_rotation = rotation_of(same_length, channels, checks, "local_");
  }
  set_longest_text(options, local, sequence_length, shape, checks);
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
  const bool slides =
      std::find(options.layer_types.begin(), options.layer_types.end(), kSlidingAttention) !=
      options.layer_types.end();
  checks.require(!slides || options.sliding_window > 0,
                 "model.sliding_window",
                 "layer_types names layers with a sliding window, and sliding_window is 0",
                 "give sliding_window");
}

MoeModel moe_model(const DecoderShape& shape) {
  return {.num_layers = shape.num_layers,
          .hidden_size = shape.hidden_size,
          .ffn_hidden_size = shape.ffn_hidden_size,
          .activation = shape.activation,
          .bias = shape.mlp_bias,
          .init_std = shape.init_std};
}

/// Marks the layers with experts; a family's own kinds of layers stay.
void mark_sparse_layers(const MoeOptions& moe, DecoderShape& shape) {
  if (!shape.experts) return;
  if (shape.layers.empty()) shape.layers.resize(static_cast<std::size_t>(shape.num_layers));
  for (std::size_t i = 0; i < shape.layers.size(); ++i)
    shape.layers[i].sparse = moe.sparse(static_cast<std::int64_t>(i));
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
  const std::int64_t num_experts = decoder->moe.num_experts;
  ModelOptions whole(family, std::move(out));
  json::Value description = config::write(whole);
  leave_out_usual_experts(description, num_experts);
  return description;
}

/// Returns a shape whose blocks can be listed, even if some sizes were refused.
DecoderShape possible(DecoderShape shape) {
  make_possible(shape);
  if (shape.head_channels() % 2 != 0) shape.head_dim = shape.head_channels() + 1;
  if (shape.num_kv_heads < 1 || shape.num_heads % shape.num_kv_heads != 0)
    shape.num_kv_heads = shape.num_heads;
  if (static_cast<std::int64_t>(shape.layers.size()) != shape.num_layers) shape.layers.clear();
  shape.rotation = possible(std::move(shape.rotation), shape.rotary_channels());
  shape.local_rotation = possible(std::move(shape.local_rotation), shape.rotary_channels());
  return shape;
}

/// 8/3 of the hidden size, rounded up.
std::int64_t default_ffn(std::int64_t hidden_size) {
  constexpr std::int64_t kMultiple = 256;
  const std::int64_t thirds = (8 * hidden_size + 2) / 3;
  return (thirds + kMultiple - 1) / kMultiple * kMultiple;
}

}  // namespace

std::vector<std::string> layer_types_of(std::int64_t layers, const LayerRule& slides) {
  std::vector<std::string> out;
  for (std::int64_t i = 0; i < layers; ++i)
    out.emplace_back(slides(i) ? kSlidingAttention : kFullAttention);
  return out;
}

std::vector<DecoderLayerKind> windows_by_layer(const DecoderOptions& options,
                                               std::int64_t layers,
                                               const LayerRule& slides) {
  std::vector<DecoderLayerKind> out(static_cast<std::size_t>(std::max<std::int64_t>(layers, 0)));
  if (options.sliding_window == 0) return out;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const bool here = i < options.layer_types.size() ? options.layer_types[i] == kSlidingAttention
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
  set_positions(options,
                preset,
                positions_bound(&options, options.local_rotary(), sequence_length),
                shape,
                checks);
  set_vocabulary(options, tokenizer_size, shape, checks, preset);
  set_common(options, shape);
  set_rotation(options, sequence_length, shape, checks);
  check_head_sizes(shape, checks);
  check_layers(options, shape, checks);
  check_experts(options.moe, moe_model(shape), checks);
  if (options.moe.num_experts > 0) shape.experts = experts_of(options.moe, moe_model(shape));
  if (family.specialize) family.specialize(shape);
  if (family.check) family.check(shape, checks);
  mark_sparse_layers(options.moe, shape);
  const DecoderShape usable = possible(shape);
  Resolved out = {.description = description_of(family.name, shape, options),
                  .trunk = decoder_trunk(usable),
                  .vocab_size = shape.vocab_size,
                  .tokenizer_size = shape.tokenizer_size,
                  .max_positions = options.rope_length.value_or(shape.max_positions),
                  .num_parameters = usable.num_parameters(),
                  .inactive_parameters = usable.inactive_parameters(),
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

}  // namespace tessera::models
