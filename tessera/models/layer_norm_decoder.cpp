// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/layer_norm_decoder.h"

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/models/objective.h"

namespace tessera::models {

void LayerNormOptions::describe_decoder_sizes(config::Fields& fields,
                                              const std::vector<Preset>& presets,
                                              const std::string& preset_default) {
  describe_sizes(fields,
                 {.presets = names_of(presets),
                  .preset_default = preset_default,
                  .positions_default = "of the preset, data.sequence_length, or 1024",
                  .ffn_default = "of the preset, or 4 x hidden_size"});
}

void LayerNormOptions::describe_dropouts(config::Fields& fields) {
  describe_dropout(fields, "Dropout probability on the outputs of attention and MLP.");
  fields.field("attention_dropout",
               attention_dropout,
               {.text = "Dropout probability on attention weights.", .min = 0, .max = kMaxDropout});
}

void LayerNormOptions::describe_layer_norm_eps(config::Fields& fields) {
  fields.field("layer_norm_eps",
               layer_norm_eps,
               {.text = "Epsilon added to the variance in layer norms.",
                .min = 0,
                .max = 1,
                .above_min = true});
}

void LayerNormOptions::describe_end(config::Fields& fields) {
  describe_init(fields, "Standard deviation of initial weights.");
  describe_label_smoothing(fields);
  describe_from(fields);
}

void set_decoder_sizes(const FamilyOptions& options,
                       const std::vector<Preset>& presets,
                       std::int64_t tokenizer_size,
                       std::optional<std::int64_t> sequence_length,
                       Sizes& sizes,
                       Checks& checks) {
  constexpr std::int64_t kMlpRatio = 4;
  const Preset* const preset = find_preset(options, presets, presets.front().name, checks);
  set_layers(options, preset, sizes, checks);
  const bool of_preset = preset != nullptr && preset->ffn_hidden_size > 0 && !options.hidden_size;
  sizes.ffn_hidden_size = options.ffn_hidden_size.value_or(
      of_preset ? preset->ffn_hidden_size : kMlpRatio * sizes.hidden_size);
  check_heads(sizes, checks);
  checks.require(sizes.num_kv_heads == sizes.num_heads,
                 "model.num_kv_heads",
                 fmt::format("num_kv_heads is {}, and in this family each of the {} heads has keys "
                             "and values of its own",
                             sizes.num_kv_heads,
                             sizes.num_heads),
                 "remove it, or choose another family in model.family");
  set_positions(options, preset, sequence_length, sizes, checks);
  set_vocabulary(options, tokenizer_size, sizes, checks, preset);
}

void give_sizes(const Sizes& sizes, FamilyOptions& options) {
  options.preset.reset();
  options.from.reset();
  options.num_layers = sizes.num_layers;
  options.hidden_size = sizes.hidden_size;
  options.num_heads = sizes.num_heads;
  options.num_kv_heads.reset();
  options.vocab_size = sizes.vocab_size;
  options.max_positions = sizes.max_positions;
  options.ffn_hidden_size = sizes.ffn_hidden_size;
}

void set_layer_norm_shape(const LayerNormOptions& options, LayerNormShape& shape) {
  shape.tie_embeddings = options.tie_embeddings;
  shape.dropout = options.dropout;
  shape.attention_dropout = options.attention_dropout;
  shape.classifier_dropout = options.classifier_dropout.value_or(kClassifierDropout);
  shape.layer_norm_eps = options.layer_norm_eps;
  shape.init_std = options.init_std;
}

Resolved facts_of(const FamilyOptions& options,
                  const std::vector<Preset>& presets,
                  const Sizes& sizes,
                  Trunk trunk,
                  json::Value description) {
  Resolved out = {.description = std::move(description),
                  .trunk = std::move(trunk),
                  .vocab_size = sizes.vocab_size,
                  .tokenizer_size = sizes.tokenizer_size,
                  .max_positions = sizes.max_positions,
                  .num_layers = sizes.num_layers,
                  .hidden_size = sizes.hidden_size,
                  .num_heads = sizes.num_heads,
                  .num_kv_heads = sizes.num_heads,
                  .tied_head = options.tie_embeddings};
  for (const auto& info : nn::parameters_of(with_objective(out.trunk, "causal_lm")))
    out.num_parameters += info->numel();
  if (options.label_smoothing > 0)
    out.objective_options["label_smoothing"] = json::Value::number(options.label_smoothing);
  out.derivations = derivations_of(options, presets.front().name, sizes);
  return out;
}

nn::BlockSpec block_of(std::string name, LayerSpec spec) {
  return {std::move(name),
          [spec = std::move(spec)] { return std::make_unique<TransformerLayer>(spec); }};
}

void require_plain(const HfConfig& keys, const char* model_type) {
  keys.refuse("model_type",
              keys.word("model_type", model_type) == model_type,
              fmt::format("\"model_type\": \"{}\"", model_type).c_str());
  keys.refuse("quantization_config", keys.empty("quantization_config"), "plain float weights");
  keys.refuse("pruned_heads", keys.empty("pruned_heads"), "all their heads");
}

std::string hf_activation(const std::string& activation, const char* family) {
  const std::string name = activation_to_hf(activation);
  TESSERA_REQUIRE(
      !name.empty(),
      Unsupported,
      fmt::format("model.activation {} has no name in Hugging Face's {}", activation, family),
      "train with gelu, gelu_tanh, relu or silu");
  return name;
}

json::Value hf_begin(const LayerNormOptions& options,
                     const char* architecture,
                     const char* model_type) {
  return json::Value::object(
      {{"architectures", json::Value::array({json::Value::string(architecture)})},
       {"model_type", json::Value::string(model_type)},
       {"vocab_size", json::Value::integer(options.vocab_size.value())},
       {"hidden_size", json::Value::integer(options.hidden_size.value())},
       {"attention_dropout", real_to_hf(options.attention_dropout)},
       {"tie_word_embeddings", json::Value::boolean(options.tie_embeddings)}});
}

Composition qkv_by_head(std::string name, const Shape& ours) {
  const std::int64_t heads = ours.at(1), channels = ours.at(2);
  Shape stored = {3 * heads * channels}, by_head = {heads, 3, channels};
  std::vector<std::size_t> dims = {1, 0, 2};
  for (std::size_t d = 3; d < ours.size(); ++d) {
    stored.push_back(ours[d]);
    by_head.push_back(ours[d]);
    dims.push_back(d);
  }
  return Composition::of(std::move(name), std::move(stored)).viewed(by_head).permuted(dims);
}

}  // namespace tessera::models
