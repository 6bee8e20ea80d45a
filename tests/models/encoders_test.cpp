// SPDX-License-Identifier: Apache-2.0
// Encoder families: published numbers of parameters, how config.json describes heads, and names in
// other versions.
#include <algorithm>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/models/family.h"
#include "tessera/models/hf_objective.h"

namespace tessera::models {
namespace {

using ::testing::HasSubstr;

Resolved resolved(const ModelOptions& options, const ObjectiveChoice& objective = {}) {
  config::Problems problems;
  Resolved out = resolve(options,
                         options->vocab_size.value_or(256),
                         std::nullopt,
                         problems,
                         config::Origins(),
                         objective);
  problems.raise();
  return out;
}

ObjectiveChoice labels(const char* objective, std::int64_t count) {
  return {objective, json::Value::object({{"num_labels", json::Value::integer(count)}})};
}

/// Parameters of a preset with a head for `count` classes.
std::int64_t parameters(const char* family, const char* preset, const ObjectiveChoice& objective) {
  ModelOptions options(family);
  options.choose_preset(preset);
  // The published tables have two types of tokens in BERT and one in RoBERTa, the families'
  // defaults.
  return resolved(options, objective).num_parameters;
}

// The counts are those of the published checkpoints, of the bare model with its pooler. A pooler
// has as many parameters as the dense layer of RoBERTa's classifier, and 1 label needs C + 1 more.
TEST(Encoders, HaveThePublishedNumbersOfParameters) {
  const ObjectiveChoice one = labels("sequence_classification", 1);
  const std::int64_t base = 768 + 1, large = 1024 + 1;

  EXPECT_EQ(parameters("bert", "bert-base-uncased", one) - base, 109'482'240);
  EXPECT_EQ(parameters("bert", "bert-base-cased", one) - base, 108'310'272);
  EXPECT_EQ(parameters("bert", "bert-large-uncased", one) - large, 335'141'888);
  EXPECT_EQ(parameters("bert", "bert-large-cased", one) - large, 333'579'264);
  EXPECT_EQ(parameters("roberta", "roberta-base", one) - base, 124'645'632);
  EXPECT_EQ(parameters("roberta", "roberta-large", one) - large, 355'359'744);
  EXPECT_EQ(parameters("xlm-roberta", "xlm-roberta-base", one) - base, 278'043'648);
  EXPECT_EQ(parameters("xlm-roberta", "xlm-roberta-large", one) - large, 559'890'432);
  // Those of the published config.json, as transformers 5.24 builds it.
  EXPECT_EQ(parameters("megatron-bert", "megatron-bert-cased-345m", one) - large, 333'640'704);
  EXPECT_EQ(parameters("megatron-bert", "megatron-bert-uncased-345m", one) - large, 335'213'568);
  // The head for classes has a dense layer that the bare model lacks.
  const std::int64_t dense = 768 * 768 + 768;
  EXPECT_EQ(parameters("distilbert", "distilbert-base-uncased", one) - base - dense, 66'362'880);
  EXPECT_EQ(parameters("distilbert", "distilbert-base-cased", one) - base - dense, 65'190'912);
}

// The counts are those of the published checkpoints, with the head for masked language modelling.
TEST(Encoders, WithTheirHeadHaveThePublishedNumbersOfParameters) {
  const ObjectiveChoice masked = {"masked_lm", json::Value::object()};

  EXPECT_EQ(parameters("modernbert", "modernbert-base", masked), 149'655'232);
  EXPECT_EQ(parameters("modernbert", "modernbert-large", masked), 395'881'664);
}

// With the head for ImageNet's 1000 classes, as torchvision and Google's first files have it.
TEST(Encoders, OfImagesHaveThePublishedNumbersOfParameters) {
  const ObjectiveChoice imagenet = labels("image_classification", 1000);

  EXPECT_EQ(parameters("vit", "vit-b-16", imagenet), 86'567'656);
  EXPECT_EQ(parameters("vit", "vit-b-32", imagenet), 88'224'232);
  EXPECT_EQ(parameters("vit", "vit-l-16", imagenet), 304'326'632);
  EXPECT_EQ(parameters("vit", "vit-h-14", imagenet), 632'045'800);
}

json::Value config_of(const std::string& text) {
  return json::parse(text, "config.json");
}

TEST(Encoders, HaveTheHeadThatTheArchitectureNames) {
  const auto name_of = [](const std::string& architecture) {
    return objective_of_hf(config_of(R"({"architectures": [")" + architecture + "\"]}")).name;
  };

  EXPECT_EQ(name_of("BertForMaskedLM"), "masked_lm");
  EXPECT_EQ(name_of("RobertaForSequenceClassification"), "sequence_classification");
  EXPECT_EQ(name_of("DistilBertForTokenClassification"), "token_classification");
  EXPECT_EQ(name_of("ViTForImageClassification"), "image_classification");
  EXPECT_EQ(name_of("GPT2LMHeadModel"), "causal_lm");
  EXPECT_EQ(name_of("BertForPreTraining"), "masked_lm_pairs");
  EXPECT_EQ(objective_of_hf(config_of("{}")).name, "");
}

// The table is the head of a family that continues text; it is also there without a head.
TEST(Encoders, WithoutAHeadGiveEmbeddings) {
  const auto name_of = [](const std::string& type, const std::string& architecture) {
    return objective_of_hf(config_of(R"({"model_type": ")" + type + R"(", "architectures": [")" +
                                     architecture + "\"]}"))
        .name;
  };

  EXPECT_EQ(name_of("bert", "BertModel"), "embedding");
  EXPECT_EQ(name_of("modernbert", "ModernBertModel"), "embedding");
  EXPECT_EQ(name_of("vit", "ViTModel"), "embedding");
  EXPECT_EQ(name_of("gpt2", "GPT2Model"), "");
  EXPECT_EQ(name_of("gpt2", "GPT2LMHeadModel"), "causal_lm");
  EXPECT_EQ(name_of("another", "AnotherModel"), "");
}

TEST(Encoders, HaveTwoLabelsWhereNothingIsSaid) {
  const auto options_of = [](const std::string& more) {
    return objective_of_hf(
               config_of(R"({"architectures": ["BertForSequenceClassification"])" + more + "}"))
        .options;
  };

  EXPECT_EQ(options_of("").find("num_labels")->as_integer(), 2);
  EXPECT_EQ(options_of("").find("problem_type"), nullptr);
  EXPECT_EQ(options_of(R"(, "num_labels": 5)").find("num_labels")->as_integer(), 5);
  EXPECT_EQ(options_of(R"(, "id2label": {"0": "a", "1": "b", "2": "c"})")
                .find("num_labels")
                ->as_integer(),
            3);
  const json::Value one = options_of(R"(, "id2label": {"0": "a"})");
  EXPECT_EQ(one.find("problem_type")->as_string(), "regression");
}

TEST(Encoders, ReportLabelsThatContradictEachOther) {
  std::string said;
  const auto labels_of = [&](const char* more) {
    said.clear();
    log::set_sink([&](log::Level, std::string_view message) { said += message; });
    const auto out = objective_of_hf(config_of(
        R"({"architectures": ["BertForSequenceClassification"], )" + std::string(more) + "}"));
    log::set_sink({});
    return out.options;
  };
  EXPECT_EQ(labels_of(R"("num_labels": 7, "id2label": {"0": "a", "1": "b"})")
                .find("num_labels")
                ->as_integer(),
            2);
  EXPECT_THAT(said, HasSubstr("num_labels is 7, and id2label names 2 labels"));
  EXPECT_EQ(labels_of(R"("id2label": {"1": "a", "2": "b", "3": "c"})").find("labels"), nullptr);
  EXPECT_THAT(said, HasSubstr("no name for label 0"));
  (void)labels_of(R"("num_labels": 2, "id2label": {"0": "a", "1": "b"})");
  EXPECT_EQ(said, "");
}

// The objective that is written for a model's head is read back unchanged.
TEST(Encoders, NameTheirObjectiveInConfigJson) {
  for (const std::string family :
       {"bert", "megatron-bert", "roberta", "xlm-roberta", "distilbert", "modernbert", "vit"}) {
    const std::vector<std::string> objectives =
        family == "vit"
            ? std::vector<std::string>{"image_classification", "embedding"}
            : std::vector<std::string>{
                  "masked_lm", "sequence_classification", "token_classification", "embedding"};
    for (const std::string& objective : objectives) {
      SCOPED_TRACE(family + " " + objective);
      ObjectiveChoice choice = labels(objective.c_str(), 3);
      if (objective == "masked_lm" || objective == "embedding")
        choice.options = json::Value::object();
      ModelOptions options(family);
      const Resolved first = resolved(options, choice);
      ModelOptions sized;
      config::Problems problems;
      config::Origins origins;
      config::read(first.description, sized, problems, origins);
      problems.raise();

      json::Value hf = families().get(family).to_hf(*sized);
      say_objective(hf, first.objective);
      const Resolved again = resolved(options_from_hf(hf), objective_of_hf(hf));

      EXPECT_EQ(again.objective.name, objective);
      EXPECT_EQ(again.num_parameters, first.num_parameters);
    }
  }
}

TEST(Encoders, SayBothHeadsOfPretrainingAndAllHeadsOfAClassifier) {
  const auto said = [](const ObjectiveChoice& choice) {
    ModelOptions options("bert");
    const Resolved first = resolved(options, choice);
    ModelOptions sized;
    config::Problems problems;
    config::Origins origins;
    config::read(first.description, sized, problems, origins);
    problems.raise();
    json::Value hf = families().get("bert").to_hf(*sized);
    say_objective(hf, first.objective);
    EXPECT_EQ(resolved(options_from_hf(hf), objective_of_hf(hf)).num_parameters,
              first.num_parameters);
    return hf;
  };

  const json::Value pairs = said({"masked_lm_pairs", json::Value::object()});
  EXPECT_EQ(pairs.find("architectures")->items().front().as_string(), "BertForPreTraining");
  EXPECT_EQ(objective_of_hf(pairs).name, "masked_lm_pairs");

  const char* const heads =
      R"([{"name":"topic","labels":["a","b","c"]},{"name":"mood","labels":["d","e"],"weight":0.5}])";
  const json::Value several =
      said({"sequence_classification",
            json::parse(std::string(R"({"num_labels": 5, "heads": )") + heads + "}", "options")});
  EXPECT_EQ(several.find("problem_type")->as_string(), "multi_label_classification");
  EXPECT_EQ(several.find("id2label")->members().size(), 5U);
  EXPECT_EQ(objective_of_hf(several).options.find("heads")->dump(), heads);
}

// What transformers does not read is kept for tessera, if it fits the labels.
TEST(Encoders, KeepThresholdsAndClassWeightsInConfigJson) {
  const auto round_trip = [](const std::string& options) {
    json::Value hf = config_of(R"({"model_type": "bert", "architectures": ["BertForMaskedLM"]})");
    say_objective(hf, {"sequence_classification", json::parse(options, "options")});
    return objective_of_hf(hf).options;
  };

  const json::Value several = round_trip(
      R"({"num_labels": 2, "problem_type": "multi_label_classification", "thresholds": [0.3, 0.6]})");
  EXPECT_EQ(several.find("thresholds")->dump(), "[0.3,0.6]");
  const json::Value weighted = round_trip(R"({"num_labels": 2, "class_weights": [1, 2.5]})");
  EXPECT_EQ(weighted.find("class_weights")->items().at(1).as_double(), 2.5);
  EXPECT_EQ(weighted.find("thresholds"), nullptr);
  const json::Value other =
      objective_of_hf(
          config_of(
              R"({"architectures": ["BertForSequenceClassification"], "class_weights": [1, 2, 3]})"))
          .options;
  EXPECT_EQ(other.find("class_weights"), nullptr);
}

TEST(Encoders, KnowTheNamesOfOtherVersions) {
  const WeightMap& bert = families().get("bert").weight_map;
  EXPECT_EQ(bert.known_as("bert.encoder.layer.3.output.LayerNorm.gamma"),
            "bert.encoder.layer.3.output.LayerNorm.weight");
  EXPECT_TRUE(bert.may_be_unused("cls.seq_relationship.weight"));
  EXPECT_FALSE(bert.may_be_unused("bert.encoder.layer.3.output.dense.weight"));

  const WeightMap& vit = families().get("vit").weight_map;
  EXPECT_EQ(vit.known_as("vit.layers.2.attention.q_proj.weight"),
            "vit.encoder.layer.2.attention.attention.query.weight");
  EXPECT_EQ(vit.known_as("layers.2.attention.o_proj.bias"),
            "encoder.layer.2.attention.output.dense.bias");
  EXPECT_EQ(vit.known_as("vit.layers.0.mlp.fc2.weight"), "vit.encoder.layer.0.output.dense.weight");
  EXPECT_EQ(vit.known_as("vit.encoder.layer.0.output.dense.weight"),
            "vit.encoder.layer.0.output.dense.weight");
}

TEST(Encoders, RefuseKeysThatComputeSomethingElse) {
  const auto text_of = [](const std::string& config) {
    try {
      (void)options_from_hf(config_of(config));
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Error::Kind::Unsupported);
      return std::string(error.what());
    }
    return std::string("nothing was refused");
  };

  EXPECT_THAT(text_of(R"({"model_type": "bert", "position_embedding_type": "relative_key"})"),
              HasSubstr("position_embedding_type"));
  EXPECT_THAT(text_of(R"({"model_type": "bert", "is_decoder": true})"), HasSubstr("is_decoder"));
}

// The table of sines is stored like any other weight.
TEST(Encoders, ReadStoredSinusoidsAndReportThatTheyAreTrained) {
  std::string said;
  log::set_sink([&](log::Level, std::string_view message) { said += message; });
  const ModelOptions read =
      options_from_hf(config_of(R"({"model_type": "distilbert", "sinusoidal_pos_embds": true})"));
  log::set_sink({});

  EXPECT_EQ(
      resolved(read).description.dump(),
      resolved(options_from_hf(config_of(R"({"model_type": "distilbert"})"))).description.dump());
  EXPECT_THAT(said, HasSubstr("optimizer.groups"));
}

// The defaults of transformers, which the hub's files override for RoBERTa.
TEST(Encoders, ReadAbsentKeysAsTransformersDoes) {
  const ModelOptions roberta = options_from_hf(config_of(R"({"model_type": "roberta"})"));

  EXPECT_EQ(roberta->max_positions, 512 - 2);
  EXPECT_EQ(roberta->dropout, 0.1);
  EXPECT_EQ(roberta->vocab_size, 30522);
  const json::Value written = config::write(*std::make_unique<ModelOptions>(roberta));
  EXPECT_EQ(written.find("type_vocab_size")->as_integer(), 2);
  EXPECT_EQ(written.find("layer_norm_eps")->as_double(), 1e-12);
}

json::Value modernbert_of(const std::string& more) {
  return config_of(R"({"model_type": "modernbert", "num_hidden_layers": 4)" + more + "}");
}

// Every third layer sees the whole text, unless the file has another number; a theta of null means
// that of the other layers.
TEST(Encoders, WithLocalLayersKnowBothWaysToSayWhichOnesTheyAre) {
  const auto written = [](const std::string& more) {
    return config::write(*std::make_unique<ModelOptions>(options_from_hf(modernbert_of(more))));
  };
  const auto types_of = [&](const std::string& more) {
    std::string out;
    const json::Value description = written(more);
    for (const json::Value& type : description.find("layer_types")->items())
      out += type.as_string().front();
    return out;
  };

  EXPECT_EQ(types_of(""), "fssf");
  EXPECT_EQ(types_of(R"(, "global_attn_every_n_layers": 2)"), "fsfs");
  EXPECT_EQ(types_of(R"(, "layer_types": ["sliding_attention", "full_attention",
                                          "full_attention", "sliding_attention"])"),
            "sffs");
  EXPECT_EQ(written("").find("local_rope_theta")->as_double(), 10000.0);
  EXPECT_EQ(written(R"(, "local_rope_theta": null)").find("local_rope_theta")->as_double(),
            160000.0);
  EXPECT_EQ(written(R"(, "rope_parameters": {"full_attention": {"rope_theta": 5000.0}})")
                .find("rope_theta")
                ->as_double(),
            5000.0);
  const json::Value scaled = written(R"(, "rope_parameters": {"sliding_attention": {
      "rope_type": "linear", "factor": 4.0, "rope_theta": 300.0}})");
  EXPECT_EQ(scaled.find("local_rope_scaling")->as_string(), "linear");
  EXPECT_EQ(scaled.find("local_rope_factor")->as_double(), 4.0);
  EXPECT_EQ(scaled.find("rope_scaling")->as_string(), "default");
  for (const char* rope : {R"("rope_type": "spiral")", R"("rope_type": "yarn", "truncate": false)"})
    EXPECT_THROW(written(R"(, "rope_parameters": {"full_attention": {)" + std::string(rope) + "}}"),
                 Error);
  EXPECT_THROW(written(R"(, "classifier_pooling": "max")"), Error);
}

// transformers before version 5 reads only the number.
TEST(Encoders, WithLocalLayersWriteTheirPeriodWhereThereIsOne) {
  const auto period_of = [](const std::string& more) {
    ModelOptions options = options_from_hf(modernbert_of(more));
    const json::Value hf = families().get("modernbert").to_hf(*options);
    const json::Value* period = hf.find("global_attn_every_n_layers");
    return period == nullptr ? -1 : period->as_integer().value();
  };

  EXPECT_EQ(period_of(R"(, "global_attn_every_n_layers": 2)"), 2);
  EXPECT_EQ(period_of(R"(, "layer_types": ["sliding_attention", "full_attention",
                                           "full_attention", "sliding_attention"])"),
            -1);
}

TEST(Encoders, WithBiasesReadBackAsTheyAreWritten) {
  const std::string biases = R"(, "attention_bias": true, "mlp_bias": true, "norm_bias": true,
                                  "classifier_bias": true, "decoder_bias": false)";
  const ObjectiveChoice masked = {"masked_lm", json::Value::object()};
  ModelOptions options = options_from_hf(modernbert_of(biases));

  const json::Value hf = families().get("modernbert").to_hf(*options);

  const std::int64_t plain = resolved(options_from_hf(modernbert_of("")), masked).num_parameters,
                     with = resolved(options, masked).num_parameters;
  // Parameters of a layer: 3 C + C for attention, 2 F + C for the MLP, and two norms, except the
  // first layer's.
  const std::int64_t C = 768, F = 1152, layers = 4;
  EXPECT_EQ(with - plain,
            layers * (4 * C + 2 * F + C) + (2 * layers - 1) * C + /*embedding, last*/ 2 * C +
                /*head*/ 2 * C - /*decoder*/ 50368);
  EXPECT_EQ(resolved(options_from_hf(hf), masked).num_parameters, with);
}

TEST(Encoders, AreRefusedWhereTheNextTokenIsToBePredicted) {
  for (const char* family : {"bert", "roberta", "distilbert", "modernbert", "vit"}) {
    EXPECT_THROW(resolved(ModelOptions(family), {"causal_lm", json::Value::object()}), Error);
  }
  EXPECT_THROW(resolved(ModelOptions("vit"), labels("sequence_classification", 2)), Error);
  EXPECT_THROW(resolved(ModelOptions("bert"), labels("image_classification", 2)), Error);
}

}  // namespace
}  // namespace tessera::models
