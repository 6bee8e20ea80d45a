// SPDX-License-Identifier: Apache-2.0
// The BERT family, and Megatron-LM's BERT with norms before the branches of a layer.  Sources:
// Devlin et al. 2019, "BERT: pre-training of deep bidirectional transformers"; Shoeybi et al. 2019,
// "Megatron-LM: training multi-billion parameter language models using model parallelism".
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tessera/models/encoder.h"
#include "tessera/models/family.h"
#include "tessera/models/gguf_names.h"
#include "tessera/models/hf_config.h"
#include "tessera/models/megatron_names.h"
#include "tessera/models/modelcenter_names.h"
#include "tessera/models/module_order.h"
#include "tessera/ops/activation.h"

namespace tessera::models {
namespace {

const std::vector<Preset>& presets() {
  constexpr std::int64_t kPositions = 512;
  static const std::vector<Preset> all = {
      nano("bert-nano", 4, 128, 4),
      {"bert-base-uncased", 12, 768, 12, 0, 0, kPositions, 30522},
      {"bert-base-cased", 12, 768, 12, 0, 0, kPositions, 28996},
      {"bert-large-uncased", 24, 1024, 16, 0, 0, kPositions, 30522},
      {"bert-large-cased", 24, 1024, 16, 0, 0, kPositions, 28996},
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

/// `activation`: of the head for masked tokens.
HeadSpecs heads_of(const EncoderOptions& options, const std::string& activation) {
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
                            .activation = activation,
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

WeightMap weight_map() {
  return {.compose = compose,
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
          .may_be_unused = may_be_unused};
}

TESSERA_MODEL("bert",
              EncoderFamilyOf<BertOptions>{.name = "bert",
                                           .presets = presets(),
                                           .names = names(),
                                           .heads =
                                               [](const BertOptions& options) {
                                                 return heads_of(options, options.activation);
                                               },
                                           .from_hf = from_hf,
                                           .to_hf = to_hf,
                                           .weight_map = weight_map()});

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

TESSERA_GGUF_NAMES(
    "bert",
    {.architecture = "BertModel",
     .model_type = "bert",
     .keys = {{"block_count", "num_hidden_layers"},
              {"context_length", "max_position_embeddings"},
              {"embedding_length", "hidden_size"},
              {"feed_forward_length", "intermediate_size"},
              {"attention.head_count", "num_attention_heads"},
              {"attention.layer_norm_epsilon", "layer_norm_eps", true}},
     .implied = {{"hidden_act", json::Value::string("gelu")}},
     .modules = {{"token_embd", "bert.embeddings.word_embeddings"},
                 {"position_embd", "bert.embeddings.position_embeddings"},
                 {"token_types", "bert.embeddings.token_type_embeddings"},
                 {"token_embd_norm", "bert.embeddings.LayerNorm"},
                 {"blk.*.attn_q", "bert.encoder.layer.*.attention.self.query"},
                 {"blk.*.attn_k", "bert.encoder.layer.*.attention.self.key"},
                 {"blk.*.attn_v", "bert.encoder.layer.*.attention.self.value"},
                 {"blk.*.attn_output", "bert.encoder.layer.*.attention.output.dense"},
                 {"blk.*.attn_output_norm", "bert.encoder.layer.*.attention.output.LayerNorm"},
                 {"blk.*.ffn_up", "bert.encoder.layer.*.intermediate.dense"},
                 {"blk.*.ffn_down", "bert.encoder.layer.*.output.dense"},
                 {"blk.*.layer_output_norm", "bert.encoder.layer.*.output.LayerNorm"}},
     .tie = "",
     .fixed_flags = {{"attention.causal", false}},
     .rows = {{"token_types.weight", "type_vocab_size", "tokenizer.ggml.token_type_count"}},
     // How the vectors of a text's tokens become one vector.
     .unread = {"pooling_type"}});

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

namespace megatron {

const std::vector<Preset>& presets() {
  constexpr std::int64_t kPositions = 512;
  // Vocabularies are padded to a multiple of 128.
  static const std::vector<Preset> all = {
      nano("megatron-bert-nano", 4, 128, 4),
      {"megatron-bert-cased-345m", 24, 1024, 16, 0, 0, kPositions, 29056},
      {"megatron-bert-uncased-345m", 24, 1024, 16, 0, 0, kPositions, 30592}};
  return all;
}

EncoderNames names() {
  EncoderNames out = ::tessera::models::names();
  out.embedding_norm.clear();
  out.attention_norm = "attention.ln";
  out.ffn_norm = "ln";
  out.final_norm = "encoder.ln";
  return out;
}

/// The key of config.json for the head's activation; transformers has one activation for the head
/// and the layers.
constexpr const char* kHeadActivation = "head_activation";

struct MegatronBertOptions final : EncoderOptions {
  std::optional<std::string> head_activation;

  [[nodiscard]] std::unique_ptr<FamilyOptions> clone() const override {
    return std::make_unique<MegatronBertOptions>(*this);
  }
  void describe(config::Fields& fields) override {
    describe_encoder(
        fields,
        {.presets = presets(),
         .preset_default = "megatron-bert-nano if no size is given",
         .positions_default = "512 for the published presets, else data.sequence_length, or 1024"});
    fields.field("head_activation",
                 head_activation,
                 {.text = "Activation function of the head for masked tokens.",
                  .choices = ops::activation_names(),
                  .default_text = "activation"});
  }
};

MegatronBertOptions from_hf(const json::Value& config) {
  const HfConfig keys(config);
  keys.refuse("model_type",
              keys.word("model_type", "megatron-bert") == "megatron-bert",
              "\"model_type\": \"megatron-bert\"");
  MegatronBertOptions out;
  encoder_from_hf(keys, out);
  if (keys.given(kHeadActivation))
    out.head_activation = keys.activation(kHeadActivation, out.activation.c_str());
  return out;
}

json::Value to_hf(const MegatronBertOptions& options) {
  json::Value out = encoder_to_hf(options, "MegatronBertForMaskedLM", "megatron-bert");
  const std::string head = options.head_activation.value_or(options.activation);
  if (head != options.activation)
    out[kHeadActivation] = json::Value::string(activation_to_hf(head));
  return out;
}

TESSERA_MODEL("megatron-bert",
              EncoderFamilyOf<MegatronBertOptions>{
                  .name = "megatron-bert",
                  .presets = presets(),
                  .names = names(),
                  .heads =
                      [](const MegatronBertOptions& options) {
                        return heads_of(options,
                                        options.head_activation.value_or(options.activation));
                      },
                  .pre_norm = true,
                  .from_hf = from_hf,
                  .to_hf = to_hf,
                  .weight_map = weight_map()});

TESSERA_MODULE_ORDER("megatron-bert",
                     {.base = "bert.",
                      .modules = {"bert.embeddings.word_embeddings",
                                  "bert.embeddings.position_embeddings",
                                  "bert.embeddings.token_type_embeddings",
                                  "bert.encoder.layer.*.attention.ln",
                                  "bert.encoder.layer.*.attention.self.query",
                                  "bert.encoder.layer.*.attention.self.key",
                                  "bert.encoder.layer.*.attention.self.value",
                                  "bert.encoder.layer.*.attention.output.dense",
                                  "bert.encoder.layer.*.ln",
                                  "bert.encoder.layer.*.intermediate.dense",
                                  "bert.encoder.layer.*.output.dense",
                                  "bert.encoder.ln",
                                  "bert.pooler.dense",
                                  "cls.predictions",
                                  "cls.predictions.transform.dense",
                                  "cls.predictions.transform.LayerNorm",
                                  "cls.seq_relationship",
                                  "classifier"}});

/// The config.json of a model with these facts (MegatronLearnedNames::config_of).
json::Value config_of(const json::Value& facts) {
  const auto fact = [&](const char* key) { return *facts.find(key); };
  const bool pairs = fact("pair_head").as_bool();
  json::Value out = encoder_config_of(facts);
  out["architectures"] = json::Value::array(
      {json::Value::string(pairs ? "MegatronBertForPreTraining" : "MegatronBertForMaskedLM")});
  out["model_type"] = json::Value::string("megatron-bert");
  out[kHeadActivation] = fact("head_activation");
  out["hidden_dropout_prob"] = fact("dropout");
  out["attention_probs_dropout_prob"] = fact("attention_dropout");
  out["initializer_range"] = fact("init_std");
  return out;
}

TESSERA_MEGATRON_LEARNED("megatron-bert",
                         {.table = "bert.embeddings.word_embeddings.weight",
                          .positions = {"bert.embeddings.position_embeddings.weight"},
                          .token_types = "bert.embeddings.token_type_embeddings.weight",
                          .encoder = {.layers = "bert.encoder.layer",
                                      .attention_norm = "attention.ln",
                                      .queries = "attention.self.query",
                                      .keys = "attention.self.key",
                                      .values = "attention.self.value",
                                      .attention_output = "attention.output.dense",
                                      .mlp_norm = "ln",
                                      .mlp_input = "intermediate.dense",
                                      .mlp_output = "output.dense",
                                      .final_norm = "bert.encoder.ln"},
                          .head = "cls.predictions.decoder.weight",
                          .head_bias = "cls.predictions.bias",
                          .untied_head_bias = "cls.predictions.decoder.bias",
                          .head_dense = "cls.predictions.transform.dense",
                          .head_norm = "cls.predictions.transform.LayerNorm",
                          .pooler = "bert.pooler.dense",
                          .pair_head = "cls.seq_relationship",
                          .config_of = config_of});

}  // namespace megatron
}  // namespace
}  // namespace tessera::models
