// SPDX-License-Identifier: Apache-2.0
// The DistilBERT family: BERT's encoder without token types.  Source: Sanh et al. 2019,
// "DistilBERT, a distilled version of BERT".
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/models/encoder.h"
#include "tessera/models/family.h"
#include "tessera/models/hf_config.h"
#include "tessera/models/module_order.h"

namespace tessera::models {
namespace {

// Hugging Face's config.json has no key for it.
constexpr double kNormEps = 1e-12;

const std::vector<Preset>& presets() {
  constexpr std::int64_t kPositions = 512;
  static const std::vector<Preset> all = {
      nano("distilbert-nano", 2, 128, 4),
      {"distilbert-base-uncased", 6, 768, 12, 0, 0, kPositions, 30522},
      {"distilbert-base-cased", 6, 768, 12, 0, 0, kPositions, 28996},
  };
  return all;
}

const EncoderNames& names() {
  static const EncoderNames all = {
      .words = "embeddings.word_embeddings",
      .positions = "embeddings.position_embeddings",
      .types = "",
      .embedding_norm = "embeddings.LayerNorm",
      .layers = "transformer.layer",
      .qkv = "attention.qkv_lin",
      .attention_output = "attention.out_lin",
      .attention_norm = "sa_layer_norm",
      .ffn_input = "ffn.lin1",
      .ffn_output = "ffn.lin2",
      .ffn_norm = "output_layer_norm",
  };
  return all;
}

struct DistilBertOptions final : EncoderOptions {
  [[nodiscard]] std::unique_ptr<FamilyOptions> clone() const override {
    return std::make_unique<DistilBertOptions>(*this);
  }
  void describe(config::Fields& fields) override {
    describe_encoder(
        fields,
        {.presets = presets(),
         .preset_default = "distilbert-nano if no size is given",
         .positions_default = "512 for the published presets, else data.sequence_length, or 1024",
         .types = false,
         .dropout_places = "after the embedding and on the output of the MLP"});
  }
};

HeadSpecs heads_of(const DistilBertOptions& options) {
  return {
      .sample = {.dense = "pre_classifier",
                 .activation = "relu",
                 .dropout = options.classifier_dropout.value_or(options.dropout),
                 .output = "classifier",
                 .output_bias = "classifier.bias"},
      .pooling = Pooling::FirstToken,
      .token =
          HeadSpec{
              .dropout = options.dropout, .output = "classifier", .output_bias = "classifier.bias"},
      .masked_lm = HeadSpec{.dense = "vocab_transform",
                            .activation = options.activation,
                            .norm = {NormKind::LayerNorm, kNormEps},
                            .norm_name = "vocab_layer_norm",
                            .output = "vocab_projector",
                            .output_bias = "vocab_projector.bias"},
  };
}

DistilBertOptions from_hf(const json::Value& config) {
  const HfConfig keys(config);
  keys.refuse("model_type",
              keys.word("model_type", "distilbert") == "distilbert",
              "\"model_type\": \"distilbert\"");
  // Files have the table of sines as a weight.
  if (keys.flag("sinusoidal_pos_embds", false))
    log::warn_once(
        "config.json: sinusoidal_pos_embds is true: the stored table of positions is read, and a "
        "training changes it, which transformers does not (freeze it with \"frozen\" in "
        "optimizer.groups)");
  keys.refuse("pruned_heads", keys.empty("pruned_heads"), "all their heads");
  keys.refuse("quantization_config", keys.empty("quantization_config"), "plain float weights");
  DistilBertOptions out;
  out.num_layers = keys.count("n_layers", 6, 1e4);
  out.hidden_size = keys.count("dim", 768, 1e6);
  out.num_heads = keys.count("n_heads", 12, 1e6);
  out.vocab_size = keys.count("vocab_size", 30522, 1e8);
  out.max_positions = keys.count("max_position_embeddings", 512, 1e8);
  out.ffn_hidden_size = keys.count("hidden_dim", 3072, 1e7);
  out.dropout = keys.number("dropout", 0.1, 0, kMaxDropout);
  out.attention_dropout = keys.number("attention_dropout", 0.1, 0, kMaxDropout);
  out.classifier_dropout = keys.number("seq_classif_dropout", 0.2, 0, kMaxDropout);
  out.activation = keys.activation("activation", "gelu");
  out.layer_norm_eps = kNormEps;
  out.init_std = keys.number("initializer_range", 0.02, 0, 100);
  out.tie_embeddings = keys.flag("tie_word_embeddings", true);
  return out;
}

json::Value to_hf(const DistilBertOptions& options) {
  const std::string activation = activation_to_hf(options.activation);
  TESSERA_REQUIRE(
      !activation.empty() && options.layer_norm_eps == kNormEps,
      Unsupported,
      fmt::format("model.activation {} and model.layer_norm_eps {}: Hugging Face's DistilBERT has "
                  "no key for one of these",
                  options.activation,
                  options.layer_norm_eps),
      "train with one of Hugging Face's activations, and with layer_norm_eps 1e-12");
  const auto integer = [](const std::optional<std::int64_t>& value) {
    return json::Value::integer(value.value());
  };
  const auto number = [](double value) { return real_to_hf(value); };
  return json::Value::object(
      {{"architectures", json::Value::array({json::Value::string("DistilBertForMaskedLM")})},
       {"model_type", json::Value::string("distilbert")},
       {"vocab_size", integer(options.vocab_size)},
       {"max_position_embeddings", integer(options.max_positions)},
       {"dim", integer(options.hidden_size)},
       {"hidden_dim", integer(options.ffn_hidden_size)},
       {"n_layers", integer(options.num_layers)},
       {"n_heads", integer(options.num_heads)},
       {"activation", json::Value::string(activation)},
       {"dropout", number(options.dropout)},
       {"attention_dropout", number(options.attention_dropout.value_or(options.dropout))},
       {"seq_classif_dropout", number(options.classifier_dropout.value_or(options.dropout))},
       {"initializer_range", number(options.init_std)},
       {"sinusoidal_pos_embds", json::Value::boolean(false)},
       {"tie_word_embeddings", json::Value::boolean(options.tie_embeddings)}});
}

Composition compose(const ParamInfo& info) {
  static const StoredNames stored = {.base = "distilbert.",
                                     .outside = {"vocab_", "pre_classifier.", "classifier."},
                                     .fused = ".qkv_lin.",
                                     .apart = {".q_lin.", ".k_lin.", ".v_lin."}};
  return compose_encoder(info, stored);
}

/// Position numbers, which old versions stored among the weights.
bool is_buffer(std::string_view name) {
  return name.ends_with("embeddings.position_ids");
}

bool may_be_unused(std::string_view name) {
  return name.starts_with("vocab_");
}

TESSERA_MODEL("distilbert",
              EncoderFamilyOf<DistilBertOptions>{
                  .name = "distilbert",
                  .presets = presets(),
                  .names = names(),
                  .heads = heads_of,
                  .drops_attention_output = false,
                  .from_hf = from_hf,
                  .to_hf = to_hf,
                  .weight_map = {.compose = compose,
                                 .base = "distilbert.",
                                 .ties = {{"vocab_projector.weight",
                                           "distilbert.embeddings.word_embeddings.weight",
                                           "vocab_projector.bias"}},
                                 .is_buffer = is_buffer,
                                 .anchor = "distilbert.embeddings.word_embeddings.weight",
                                 .may_be_unused = may_be_unused}});

TESSERA_MODULE_ORDER("distilbert",
                     {.base = "distilbert.",
                      .modules = {"distilbert.embeddings.word_embeddings",
                                  "distilbert.embeddings.position_embeddings",
                                  "distilbert.embeddings.LayerNorm",
                                  "distilbert.transformer.layer.*.attention.q_lin",
                                  "distilbert.transformer.layer.*.attention.k_lin",
                                  "distilbert.transformer.layer.*.attention.v_lin",
                                  "distilbert.transformer.layer.*.attention.out_lin",
                                  "distilbert.transformer.layer.*.sa_layer_norm",
                                  "distilbert.transformer.layer.*.ffn.lin1",
                                  "distilbert.transformer.layer.*.ffn.lin2",
                                  "distilbert.transformer.layer.*.output_layer_norm",
                                  "vocab_transform",
                                  "vocab_layer_norm",
                                  "vocab_projector",
                                  "pre_classifier",
                                  "classifier"}});

}  // namespace
}  // namespace tessera::models
