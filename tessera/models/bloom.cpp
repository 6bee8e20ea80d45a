// SPDX-License-Identifier: Apache-2.0
// The BLOOM family: attention with a bias by distance (ALiBi) instead of positions, a norm after
// the token embedding, a tied head. Source: Scao et al. 2022, "BLOOM: a 176B-parameter open-access
// multilingual language model".
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/models/gguf_names.h"
#include "tessera/models/layer_norm_decoder.h"
#include "tessera/models/module_order.h"
#include "tessera/nn/functional.h"

namespace tessera::models {
namespace {

/// Hugging Face's BLOOM has no key for either.
constexpr std::int64_t kMlpRatio = 4;
constexpr const char* kActivation = "gelu_tanh";

using BloomShape = LayerNormShape;

NormSpec norm_of(const BloomShape& shape) {
  return {NormKind::LayerNorm, shape.layer_norm_eps};
}

TrunkOutput output_of(const BloomShape& shape) {
  return {
      .hidden_size = shape.hidden_size,
      .norm = norm_of(shape),
      .norm_name = "ln_f",
      .vocabulary = {"word_embeddings.weight", shape.vocab_size, shape.tie_embeddings},
      .init_std = shape.init_std,
      .heads = {.token = HeadSpec{.dropout = shape.classifier_dropout,
                                  .output = "classifier",
                                  .output_bias = "classifier.bias"}},
  };
}

LayerSpec layer_of(const BloomShape& shape) {
  const Init init = Init::normal(shape.init_std);
  return {
      .attention = {.hidden_size = shape.hidden_size,
                    .num_heads = shape.num_heads,
                    .num_kv_heads = shape.num_heads,
                    .head_dim = shape.hidden_size / shape.num_heads,
                    .qkv_name = "self_attention.query_key_value",
                    .output_name = "self_attention.dense",
                    .qkv_bias = true,
                    .output_bias = true,
                    .qkv_init = init,
                    .output_init = init,
                    .dropout = shape.attention_dropout,
                    .alibi = true},
      .mlp = MlpSpec{.hidden_size = shape.hidden_size,
                     .ffn_hidden_size = shape.ffn_hidden_size,
                     .input_name = "mlp.dense_h_to_4h",
                     .output_name = "mlp.dense_4h_to_h",
                     .input_init = init,
                     .output_init = init,
                     .activation = kActivation},
      .norm = norm_of(shape),
      .attention_norm_name = "input_layernorm",
      .mlp_norm_name = "post_attention_layernorm",
      .residual_dropout = shape.dropout,
  };
}

class Embedding final : public nn::Block {
 public:
  explicit Embedding(const BloomShape& shape) : shape_(shape), norm_(norm_of(shape)) {}

  void declare(nn::Params& params) override {
    table_ = declare_table(params, output_of(shape_));
    norm_.declare(params, "word_embeddings_layernorm", shape_.hidden_size, kGlobalName);
  }

  [[nodiscard]] bool works_by_token() const override { return true; }

  nn::Outcome forward(nn::Flow /*in*/, const nn::Batch& batch, nn::StepContext& context) override {
    const at::Tensor x_BTC = nn::embedding(batch.tensor("input_ids"), *table_, context);
    return {.flow = {.diff = {norm_(x_BTC, context)}}};
  }

 private:
  BloomShape shape_;
  Param* table_ = nullptr;
  Norm norm_;
};

Trunk trunk_of(const BloomShape& shape) {
  Trunk trunk{.output = output_of(shape)};
  trunk.blocks.push_back(
      {"word_embeddings", [shape] { return std::make_unique<Embedding>(shape); }});
  for (std::int64_t i = 0; i < shape.num_layers; ++i)
    trunk.blocks.push_back(block_of(fmt::format("h.{}", i), layer_of(shape)));
  return trunk;
}

constexpr std::int64_t kPositions = 2048, kVocabulary = 250880;

Preset published(const char* name, std::int64_t layers, std::int64_t hidden, std::int64_t heads) {
  return {.name = name,
          .num_layers = layers,
          .hidden_size = hidden,
          .num_heads = heads,
          .max_positions = kPositions,
          .vocab_size = kVocabulary};
}

const std::vector<Preset>& presets() {
  static const std::vector<Preset> all = {
      nano("bloom-nano", 4, 128, 4),
      published("bloom-560m", 24, 1024, 16),
      published("bloom-1b1", 24, 1536, 16),
      published("bloom-1b7", 24, 2048, 16),
      published("bloom-3b", 30, 2560, 32),
      published("bloom-7b1", 30, 4096, 32),
      published("bloom-176b", 70, 14336, 112),
  };
  return all;
}

struct BloomOptions final : LayerNormOptions {
  [[nodiscard]] std::unique_ptr<FamilyOptions> clone() const override {
    return std::make_unique<BloomOptions>(*this);
  }

  void describe(config::Fields& fields) override {
    describe_decoder_sizes(fields, presets(), "bloom-nano if no size is given");
    describe_dropouts(fields);
    describe_classifier_dropout(fields, classifier_dropout, "dropout");
    describe_tie(fields);
    describe_layer_norm_eps(fields);
    describe_end(fields);
  }
};

/// Hugging Face takes hidden_dropout where a config.json has no classifier_dropout.
void specialize(const BloomOptions& options, BloomShape& shape, Checks& /*checks*/) {
  shape.classifier_dropout = options.classifier_dropout.value_or(options.dropout);
}

/// The first existing key: an old name, and the attribute that it maps to, take precedence.
std::int64_t first_count(const HfConfig& keys,
                         const std::vector<const char*>& names,
                         std::int64_t absent,
                         double max) {
  for (const char* const name : names) {
    if (keys.find(name) != nullptr) return keys.count(name, absent, max);
  }
  return absent;
}

BloomOptions from_hf(const json::Value& config) {
  const HfConfig keys(config);
  require_plain(keys, "bloom");
  keys.refuse("apply_residual_connection_post_layernorm",
              !keys.flag("apply_residual_connection_post_layernorm", false),
              "apply_residual_connection_post_layernorm false");
  BloomOptions out;
  out.num_layers = first_count(keys, {"num_hidden_layers", "n_layer"}, 2, 1e4);
  out.hidden_size = first_count(keys, {"n_embed", "hidden_size"}, 64, 1e6);
  out.num_heads = first_count(keys, {"num_attention_heads", "n_head"}, 8, 1e6);
  out.vocab_size = keys.count("vocab_size", kVocabulary, 1e8);
  out.max_positions = keys.count("seq_length", kPositions, 1e8);
  out.ffn_hidden_size = kMlpRatio * *out.hidden_size;
  out.dropout = keys.number("hidden_dropout", 0.0, 0, kMaxDropout);
  out.attention_dropout = keys.number("attention_dropout", 0.0, 0, kMaxDropout);
  out.classifier_dropout = keys.number_or_none("classifier_dropout", 0, kMaxDropout);
  out.tie_embeddings = keys.flag("tie_word_embeddings", true);
  out.layer_norm_eps = keys.number("layer_norm_epsilon", 1e-5, 1e-30, 1);
  out.init_std = keys.number("initializer_range", 0.02, 0, 100);
  return out;
}

json::Value to_hf(const BloomOptions& options) {
  const std::int64_t ffn = options.ffn_hidden_size.value(), hidden = options.hidden_size.value();
  TESSERA_REQUIRE(
      ffn == kMlpRatio * hidden,
      Unsupported,
      fmt::format("model.ffn_hidden_size is {}, and Hugging Face's BLOOM always has {} x "
                  "hidden_size",
                  ffn,
                  kMlpRatio),
      fmt::format("train with model.ffn_hidden_size {}", kMlpRatio * hidden));
  json::Value out = hf_begin(options, "BloomForCausalLM", "bloom");
  out["n_layer"] = json::Value::integer(options.num_layers.value());
  out["n_head"] = json::Value::integer(options.num_heads.value());
  out["seq_length"] = json::Value::integer(options.max_positions.value());
  out["apply_residual_connection_post_layernorm"] = json::Value::boolean(false);
  out["hidden_dropout"] = real_to_hf(options.dropout);
  if (options.classifier_dropout)
    out["classifier_dropout"] = real_to_hf(*options.classifier_dropout);
  out["layer_norm_epsilon"] = real_to_hf(options.layer_norm_eps);
  out["initializer_range"] = real_to_hf(options.init_std);
  return out;
}

/// Hugging Face's names are tessera's with the prefix "transformer.", except for parameters after
/// the trunk.
Composition compose(const ParamInfo& info) {
  const bool outside = info.name == "lm_head.weight" || info.name == "score.weight" ||
                       info.name.starts_with("classifier.");
  const std::string theirs = (outside ? "" : "transformer.") + info.name;
  if (info.name.find(".query_key_value.") != std::string::npos)
    return qkv_by_head(theirs, info.shape);
  return Composition::of(theirs, info.shape);
}

using BloomFamily = LayerNormFamilyOf<BloomOptions, BloomShape>;
TESSERA_MODEL("bloom",
              BloomFamily{
                  .name = "bloom",
                  .presets = presets(),
                  .classifies_tokens = true,
                  .specialize = specialize,
                  .trunk = trunk_of,
                  .from_hf = from_hf,
                  .to_hf = to_hf,
                  .weight_map = {.compose = compose,
                                 .base = "transformer.",
                                 .ties = {{"lm_head.weight", "transformer.word_embeddings.weight"}},
                                 .anchor = "transformer.word_embeddings.weight"}});

TESSERA_MODULE_ORDER("bloom",
                     {.base = "transformer.",
                      .modules = {"transformer.word_embeddings",
                                  "transformer.word_embeddings_layernorm",
                                  "transformer.h.*.input_layernorm",
                                  "transformer.h.*.self_attention.query_key_value",
                                  "transformer.h.*.self_attention.dense",
                                  "transformer.h.*.post_attention_layernorm",
                                  "transformer.h.*.mlp.dense_h_to_4h",
                                  "transformer.h.*.mlp.dense_4h_to_h",
                                  "transformer.ln_f",
                                  "lm_head"}});

TESSERA_GGUF_NAMES("bloom",
                   {.architecture = "BloomForCausalLM",
                    .model_type = "bloom",
                    .keys = {{"context_length", "seq_length"},
                             {"embedding_length", "hidden_size"},
                             {"feed_forward_length", ""},
                             {"block_count", "n_layer"},
                             {"attention.head_count", "n_head"},
                             {"attention.head_count_kv", "", false, false},
                             {"attention.layer_norm_epsilon", "layer_norm_epsilon", true}},
                    .modules = {{"token_embd", "transformer.word_embeddings"},
                                {"token_embd_norm", "transformer.word_embeddings_layernorm"},
                                {"output_norm", "transformer.ln_f"},
                                {"output", "lm_head"},
                                {"blk.*.attn_norm", "transformer.h.*.input_layernorm"},
                                {"blk.*.attn_qkv",
                                 "transformer.h.*.self_attention.query_key_value"},
                                {"blk.*.attn_output", "transformer.h.*.self_attention.dense"},
                                {"blk.*.ffn_norm", "transformer.h.*.post_attention_layernorm"},
                                {"blk.*.ffn_up", "transformer.h.*.mlp.dense_h_to_4h"},
                                {"blk.*.ffn_down", "transformer.h.*.mlp.dense_4h_to_h"}},
                    .by_part = {"blk.*.attn_qkv"}});

}  // namespace
}  // namespace tessera::models
