// SPDX-License-Identifier: Apache-2.0
// The RoBERTa family, and XLM-R, which has the same shape and names: BERT's encoder with positions
// that count only non-padding tokens. Source: Liu et al. 2019, "RoBERTa"; Conneau et al. 2020,
// "Unsupervised cross-lingual representation learning at scale".
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/models/encoder.h"
#include "tessera/models/family.h"
#include "tessera/models/hf_config.h"
#include "tessera/models/modelcenter_names.h"
#include "tessera/models/module_order.h"

namespace tessera::models {
namespace {

constexpr std::int64_t kPositions = 512;

const std::vector<Preset>& presets() {
  static const std::vector<Preset> all = {
      nano("roberta-nano", 4, 128, 4),
      {"roberta-base", 12, 768, 12, 0, 0, kPositions, 50265},
      {"roberta-large", 24, 1024, 16, 0, 0, kPositions, 50265},
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

struct RobertaOptions : EncoderOptions {
  RobertaOptions() {
    type_vocab_size = 1;
    layer_norm_eps = 1e-5;
  }
  std::int64_t pad_token_id = 1;

  [[nodiscard]] std::unique_ptr<FamilyOptions> clone() const override {
    return std::make_unique<RobertaOptions>(*this);
  }
  void describe(config::Fields& fields) override { describe_with(fields, presets()); }

 protected:
  void describe_with(config::Fields& fields, const std::vector<Preset>& of_family) {
    describe_encoder(
        fields,
        {.presets = of_family,
         .preset_default = fmt::format("{} if no size is given", of_family.front().name),
         .positions_default = "512 for the published presets, else data.sequence_length, or 1024"});
    fields.field("pad_token_id",
                 pad_token_id,
                 {.text = "Id of padding tokens, which have no position; the row after this id in "
                          "the position table is the first position.",
                  .min = 0,
                  .max = 1e6});
  }
};

HeadSpecs heads_of(const RobertaOptions& options) {
  const double dropout = options.classifier_dropout.value_or(options.dropout);
  return {
      .sample = {.dense = "classifier.dense",
                 .input_dropout = dropout,
                 .dropout = dropout,
                 .output = "classifier.out_proj",
                 .output_bias = "classifier.out_proj.bias"},
      .pooling = Pooling::FirstToken,
      .token =
          HeadSpec{.dropout = dropout, .output = "classifier", .output_bias = "classifier.bias"},
      // The exact GELU, whatever activation the layers have.
      .masked_lm =
          HeadSpec{.dense = "lm_head.dense",
                   .activation = "gelu",
                   .norm = {NormKind::LayerNorm, options.layer_norm_eps},
                   .norm_name = "lm_head.layer_norm",
                   .output = "lm_head.decoder",
                   // transformers adds decoder.bias, which is tied if the matrix is.
                   .output_bias = options.tie_embeddings ? "lm_head.bias" : "lm_head.decoder.bias"},
  };
}

template <class Options>
Options read_hf(const json::Value& config, const char* model_type) {
  const HfConfig keys(config);
  keys.refuse("model_type",
              keys.word("model_type", model_type) == model_type,
              fmt::format("\"model_type\": \"{}\"", model_type).c_str());
  Options out;
  encoder_from_hf(keys, out);
  const json::Value* pad = keys.find("pad_token_id");
  if (pad != nullptr) {
    const auto id = pad->is_number() ? pad->as_integer() : std::nullopt;
    TESSERA_REQUIRE(id && *id >= 0 && *id < *out.vocab_size,
                    Format,
                    fmt::format("{}: \"pad_token_id\" is {}, expected an id of the vocabulary",
                                pad->place.text(),
                                pad->dump()),
                    "mend config.json, or fetch it again");
    out.pad_token_id = *id;
  }
  // The first rows of the table, up to that of the padding id, belong to no position.
  const std::int64_t rows = *out.max_positions, unused = out.pad_token_id + 1;
  TESSERA_REQUIRE(
      rows > unused,
      Format,
      fmt::format(
          "\"max_position_embeddings\" is {}, and {} of them are of no position", rows, unused),
      "mend config.json, or fetch it again");
  out.max_positions = rows - unused;
  return out;
}

json::Value write_hf(const RobertaOptions& options, const char* architecture, const char* type) {
  json::Value out = encoder_to_hf(options, architecture, type);
  out["pad_token_id"] = json::Value::integer(options.pad_token_id);
  out["max_position_embeddings"] =
      json::Value::integer(options.max_positions.value() + options.pad_token_id + 1);
  return out;
}

Composition compose(const ParamInfo& info) {
  static const StoredNames stored = {.base = "roberta.",
                                     .outside = {"lm_head.", "classifier."},
                                     .fused = ".qkv.",
                                     .apart = {".query.", ".key.", ".value."}};
  return compose_encoder(info, stored);
}

/// Numbers of positions and types, which old versions stored among the weights.
bool is_buffer(std::string_view name) {
  return name.ends_with("embeddings.position_ids") || name.ends_with("embeddings.token_type_ids");
}

bool may_be_unused(std::string_view name) {
  return name.starts_with("lm_head.") || name.starts_with("roberta.pooler.") ||
         name.starts_with("pooler.");
}

WeightMap weight_map() {
  return {.compose = compose,
          .base = "roberta.",
          .ties = {{"lm_head.decoder.weight",
                    "roberta.embeddings.word_embeddings.weight",
                    "lm_head.bias"},
                   {"lm_head.decoder.bias", "lm_head.bias"},
                   {.alias = "lm_head.bias", .of = "lm_head.decoder.bias", .unused = true}},
          .is_buffer = is_buffer,
          .anchor = "roberta.embeddings.word_embeddings.weight",
          .may_be_unused = may_be_unused};
}

ModuleOrder module_order() {
  return {.base = "roberta.",
          .modules = {"roberta.embeddings.word_embeddings",
                      "roberta.embeddings.position_embeddings",
                      "roberta.embeddings.token_type_embeddings",
                      "roberta.embeddings.LayerNorm",
                      "roberta.encoder.layer.*.attention.self.query",
                      "roberta.encoder.layer.*.attention.self.key",
                      "roberta.encoder.layer.*.attention.self.value",
                      "roberta.encoder.layer.*.attention.output.dense",
                      "roberta.encoder.layer.*.attention.output.LayerNorm",
                      "roberta.encoder.layer.*.intermediate.dense",
                      "roberta.encoder.layer.*.output.dense",
                      "roberta.encoder.layer.*.output.LayerNorm",
                      "lm_head",
                      "lm_head.dense",
                      "lm_head.layer_norm",
                      "classifier",
                      "classifier.dense",
                      "classifier.out_proj"}};
}

/// Both have the same names and heads.
template <class Options>
EncoderFamilyOf<Options> family_of(const char* name,
                                   const std::vector<Preset>& of_family,
                                   const char* architecture) {
  return {.name = name,
          .presets = of_family,
          .names = names(),
          .heads = [](const Options& options) { return heads_of(options); },
          .counted_pad = [](const Options& options) { return options.pad_token_id; },
          .from_hf = [name](const json::Value& config) { return read_hf<Options>(config, name); },
          .to_hf = [name, architecture](
                       const Options& options) { return write_hf(options, architecture, name); },
          .weight_map = weight_map()};
}

TESSERA_MODEL("roberta", family_of<RobertaOptions>("roberta", presets(), "RobertaForMaskedLM"));
TESSERA_MODULE_ORDER("roberta", module_order());

namespace xlm {

const std::vector<Preset>& presets() {
  static const std::vector<Preset> all = {
      {"xlm-roberta-base", 12, 768, 12, 0, 0, kPositions, 250002},
      {"xlm-roberta-large", 24, 1024, 16, 0, 0, kPositions, 250002}};
  return all;
}

struct XlmRobertaOptions final : RobertaOptions {
  [[nodiscard]] std::unique_ptr<FamilyOptions> clone() const override {
    return std::make_unique<XlmRobertaOptions>(*this);
  }
  void describe(config::Fields& fields) override { describe_with(fields, presets()); }
};

TESSERA_MODEL("xlm-roberta",
              family_of<XlmRobertaOptions>("xlm-roberta", presets(), "XLMRobertaForMaskedLM"));
TESSERA_MODULE_ORDER("xlm-roberta", module_order());

}  // namespace xlm
TESSERA_MODELCENTER("roberta",
                    {.class_name = "Roberta",
                     .is_of =
                         [](const ModelCenterFile& file) {
                           return file.has("token_type_embedding.weight") &&
                                  file.config.find("pad_token_id") != nullptr;
                         },
                     .computes = post_norm_encoder_keys(),
                     .config_of =
                         [](const json::Value& facts, const json::Value& config) {
                           json::Value out = post_norm_encoder_config(facts, config);
                           out["model_type"] = json::Value::string("roberta");
                           out["pad_token_id"] = *config.find("pad_token_id");
                           return out;
                         },
                     .names =
                         [](std::int64_t layers) {
                           NamePairs out = post_norm_encoder_names(layers, "roberta.");
                           for (const char* module : {"lm_head.dense", "lm_head.layer_norm"})
                             out.emplace_back(module, module);
                           out.emplace_back("lm_head.decoder.weight", "lm_head.decoder.weight");
                           out.emplace_back("lm_head.decoder.bias", "lm_head.bias");
                           return out;
                         },
                     .head = "lm_head.decoder.weight"});

}  // namespace
}  // namespace tessera::models
