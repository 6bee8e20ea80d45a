// SPDX-License-Identifier: Apache-2.0
// The BERT family.  Source: Devlin et al. 2019, "BERT: pre-training of deep bidirectional
// transformers".
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tessera/models/encoder.h"
#include "tessera/models/family.h"
#include "tessera/models/hf_config.h"
#include "tessera/models/modelcenter_names.h"
#include "tessera/models/module_order.h"

namespace tessera::models {
namespace {

const std::vector<Preset>& presets() {
  constexpr std::int64_t kPositions = 512;
  static const std::vector<Preset> all = {
      {.name = "bert-nano", .num_layers = 4, .hidden_size = 128, .num_heads = 4, .bytes = true},
      {.name = "bert-base-uncased",
       .num_layers = 12,
       .hidden_size = 768,
       .num_heads = 12,
       .max_positions = kPositions,
       .vocab_size = 30522},
      {.name = "bert-base-cased",
       .num_layers = 12,
       .hidden_size = 768,
       .num_heads = 12,
       .max_positions = kPositions,
       .vocab_size = 28996},
      {.name = "bert-large-uncased",
       .num_layers = 24,
       .hidden_size = 1024,
       .num_heads = 16,
       .max_positions = kPositions,
       .vocab_size = 30522},
      {.name = "bert-large-cased",
       .num_layers = 24,
       .hidden_size = 1024,
       .num_heads = 16,
       .max_positions = kPositions,
       .vocab_size = 28996},
  };
  return all;
}

const EncoderNames& names() {
  static const EncoderNames all = {
      .words = "embeddings.word_embeddings",
      .positions = "embeddings.position_embeddings",
      .types = "embeddings.token_type_embeddings",
      .embedding_norm = "embeddings.LayerNorm",
      .layers = "encoder.layer",
      .qkv = "attention.self.qkv",
      .attention_output = "attention.output.dense",
      .attention_norm = "attention.output.LayerNorm",
      .ffn_input = "intermediate.dense",
      .ffn_output = "output.dense",
      .ffn_norm = "output.LayerNorm",
  };
  return all;
}

struct BertOptions final : EncoderOptions {
  [[nodiscard]] std::unique_ptr<FamilyOptions> clone() const override {
    return std::make_unique<BertOptions>(*this);
  }
  void describe(config::Fields& fields) override {
    describe_encoder(
        fields,
        {.presets = presets(),
         .preset_default = "bert-nano if no size is given",
         .positions_default = "512 for the published presets, else data.sequence_length, or 1024"});
  }
};

HeadSpecs heads_of(const BertOptions& options) {
  const double dropout = options.classifier_dropout.value_or(options.dropout);
  return {
      // Its dense layer is the pooler.
      .sample = {.dense = "pooler.dense",
                 .dropout = dropout,
                 .output = "classifier",
                 .output_bias = "classifier.bias"},
      .pooling = Pooling::FirstToken,
      .token =
          HeadSpec{.dropout = dropout, .output = "classifier", .output_bias = "classifier.bias"},
      .masked_lm = HeadSpec{.dense = "cls.predictions.transform.dense",
                            .activation = options.activation,
                            .norm = {NormKind::LayerNorm, options.layer_norm_eps},
                            .norm_name = "cls.predictions.transform.LayerNorm",
                            .output = "cls.predictions.decoder",
                            // transformers adds decoder.bias, which is tied if the matrix is.
                            .output_bias = options.tie_embeddings ? "cls.predictions.bias"
                                                                  : "cls.predictions.decoder.bias"},
      .pair = HeadSpec{.dense = "pooler.dense",
                       .output = "cls.seq_relationship",
                       .output_bias = "cls.seq_relationship.bias"},
  };
}

BertOptions from_hf(const json::Value& config) {
  const HfConfig keys(config);
  keys.refuse("model_type", keys.word("model_type", "bert") == "bert", "\"model_type\": \"bert\"");
  BertOptions out;
  encoder_from_hf(keys, out);
  return out;
}

json::Value to_hf(const BertOptions& options) {
  return encoder_to_hf(options, "BertForMaskedLM", "bert");
}

Composition compose(const ParamInfo& info) {
  static const StoredNames stored = {.base = "bert.",
                                     .outside = {"cls.", "classifier."},
                                     .fused = ".qkv.",
                                     .apart = {".query.", ".key.", ".value."}};
  return compose_encoder(info, stored);
}

/// Position numbers, which old versions stored among the weights.
bool is_buffer(std::string_view name) {
  return name.ends_with("embeddings.position_ids");
}

/// The first files name the parameters of a norm gamma and beta.
std::string known_as(std::string name) {
  const auto rename = [&name](std::string_view old, std::string_view known) {
    if (name.ends_with(old)) name.replace(name.size() - old.size(), old.size(), known);
  };
  rename("LayerNorm.gamma", "LayerNorm.weight");
  rename("LayerNorm.beta", "LayerNorm.bias");
  return name;
}

/// Files of pre-training contain a pooler and two heads, one of which predicts the next sentence.
bool may_be_unused(std::string_view name) {
  return name.starts_with("cls.") || name.starts_with("bert.pooler.") ||
         name.starts_with("pooler.");
}

TESSERA_MODEL("bert",
              EncoderFamilyOf<BertOptions>{
                  .name = "bert",
                  .presets = presets(),
                  .names = names(),
                  .heads = heads_of,
                  .from_hf = from_hf,
                  .to_hf = to_hf,
                  .weight_map = {.compose = compose,
                                 .base = "bert.",
                                 .ties = {{"cls.predictions.decoder.weight",
                                           "bert.embeddings.word_embeddings.weight",
                                           "cls.predictions.bias"},
                                          {"cls.predictions.decoder.bias", "cls.predictions.bias"},
                                          {.alias = "cls.predictions.bias",
                                           .of = "cls.predictions.decoder.bias",
                                           .unused = true}},
                                 .is_buffer = is_buffer,
                                 .anchor = "bert.embeddings.word_embeddings.weight",
                                 .known_as = known_as,
                                 .may_be_unused = may_be_unused}});

TESSERA_MODULE_ORDER("bert",
                     {.base = "bert.",
                      .modules = {"bert.embeddings.word_embeddings",
                                  "bert.embeddings.position_embeddings",
                                  "bert.embeddings.token_type_embeddings",
                                  "bert.embeddings.LayerNorm",
                                  "bert.encoder.layer.*.attention.self.query",
                                  "bert.encoder.layer.*.attention.self.key",
                                  "bert.encoder.layer.*.attention.self.value",
                                  "bert.encoder.layer.*.attention.output.dense",
                                  "bert.encoder.layer.*.attention.output.LayerNorm",
                                  "bert.encoder.layer.*.intermediate.dense",
                                  "bert.encoder.layer.*.output.dense",
                                  "bert.encoder.layer.*.output.LayerNorm",
                                  "bert.pooler.dense",
                                  "cls.predictions",
                                  "cls.predictions.transform.dense",
                                  "cls.predictions.transform.LayerNorm",
                                  "cls.seq_relationship",
                                  "classifier"}});

TESSERA_MODELCENTER("bert",
                    {.class_name = "Bert",
                     .is_of =
                         [](const ModelCenterFile& file) {
                           return file.has("token_type_embedding.weight") &&
                                  file.config.find("pad_token_id") == nullptr;
                         },
                     .computes = post_norm_encoder_keys(),
                     .config_of =
                         [](const json::Value& facts, const json::Value& config) {
                           json::Value out = post_norm_encoder_config(facts, config);
                           out["model_type"] = json::Value::string("bert");
                           return out;
                         },
                     .names =
                         [](std::int64_t layers) {
                           NamePairs out = post_norm_encoder_names(layers, "bert.");
                           const std::string head = "cls.predictions.";
                           out.emplace_back("lm_head.dense", head + "transform.dense");
                           out.emplace_back("lm_head.layer_norm", head + "transform.LayerNorm");
                           out.emplace_back("lm_head.decoder.weight", head + "decoder.weight");
                           out.emplace_back("lm_head.decoder.bias", head + "bias");
                           return out;
                         },
                     .head = "lm_head.decoder.weight"});

}  // namespace
}  // namespace tessera::models
