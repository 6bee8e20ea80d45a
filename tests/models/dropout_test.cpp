// SPDX-License-Identifier: Apache-2.0
// The places where every family applies dropout, and the keys of their probabilities, against its
// source. The places of transformers' models were recorded in a training step of transformers 5.24
// (dropout_reference.py). The others:
//   cpm1, cpm2  ModelCenter, model_center/layer: attention.py drops probabilities, and each block
//               of blocks.py its output; FFNBlock gives its FeedForward no dropout_p, and neither
//               the models nor Encoder and Decoder drop embeddings or last hidden states
//   compose     TencentPretrain, tencentpretrain: embeddings/embedding.py (the whole embedding),
//               layers/multi_headed_attn.py (probabilities) and layers/transformer.py (outputs of
//               attention, cross attention and FFN)
#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "support/model_runner.h"
#include "support/source_dir.h"
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "tessera/base/files.h"
#include "tessera/config/json.h"
#include "tessera/models/family.h"
#include "tessera/models/hf_objective.h"
#include "tessera/nn/dropout_record.h"

namespace tessera::models {
namespace {

constexpr std::int64_t kSamples = 2, kTokens = 8, kVocab = 64;

/// "attention 0.1": the kind of tensor and the probability.
std::string place(const std::string& kind, double p) {
  return fmt::format("{} {}", kind, p);
}

std::string kind_of(const std::string& site) {
  if (site == "attention" || site == "cross_attention") return "attention";
  return site == "mlp_hidden" ? "ffn" : "stream";
}

nn::Batch batch_for(const Resolved& model) {
  const at::Tensor ids = at::arange(kSamples * kTokens, at::kLong).remainder_(kVocab - 3).add_(3);
  const at::Tensor ids_BT = ids.view({kSamples, kTokens});
  nn::Batch batch = test::make_batch(ids_BT);
  const std::string& objective = model.objective.name;
  const bool whole = objective == "sequence_classification" || objective == "image_classification";
  if (whole) batch.set("label", at::zeros({kSamples}, at::kLong));
  if (!whole) batch.set("labels", ids_BT.remainder(2));
  if (model.trunk.output.modality == Modality::Images)
    batch.set("pixel_values", at::ones({kSamples, 3, 8, 8}));
  return batch;
}

/// The places of a training step, in the order of their use.
std::vector<std::string> places_of(const Resolved& model) {
  test::ModelRunner runner(model.model);
  runner.initialize(1);
  const nn::DropoutRecord record;
  (void)runner.train(batch_for(model));
  std::vector<std::string> out;
  for (const auto& one : record.places())
    out.push_back(place(kind_of(one.site), one.p));
  return out;
}

Resolved resolved(const ModelOptions& options, const ObjectiveChoice& objective = {}) {
  config::Problems problems;
  Resolved out = resolve(options, kVocab, kTokens, problems, config::Origins(), objective);
  problems.raise();
  return out;
}

/// An encoder of two layers has 10 places: those of the layers, the embedding and the output.
void move_embedding_of_target(std::vector<std::string>& places) {
  constexpr int kEncoder = 10;
  std::rotate(places.begin() + 1, places.begin() + kEncoder, places.begin() + kEncoder + 1);
}

TEST(Dropout, OfModelsOfTransformersIsAtTheirPlaces) {
  const std::string path = test::source_dir().string() + "/tests/models/dropout_places.json";
  const json::Value record = json::parse(files::read(path), path);
  std::set<std::string> families_seen;
  for (const auto& [name, one] : record.members()) {
    SCOPED_TRACE(name);
    const json::Value& config = *one.find("config");
    std::vector<std::string> expected;
    for (const json::Value& recorded : one.find("places")->items())
      expected.push_back(place(recorded.items()[0].as_string(), recorded.items()[1].as_double()));
    families_seen.insert(family_of_hf(config));
    const Resolved model = resolved(options_from_hf(config), objective_of_hf(config));
    // Here the target is embedded beside the source, before the encoder's layers.
    if (model.trunk.output.target) move_embedding_of_target(expected);

    EXPECT_EQ(places_of(model), expected);
  }
  // A new family belongs into the script, or below. Published models with experts have no dropout
  // but that of attention, which is in the layers that they share with the other decoders.
  const std::set<std::string> others = {"cpm1",
                                        "cpm2",
                                        "compose",
                                        "imaginary",
                                        "dbrx",
                                        "deepseek_v2",
                                        "deepseek_v3",
                                        "gpt_oss",
                                        "granitemoe",
                                        "jetmoe",
                                        "llama4_text",
                                        "mixtral",
                                        "olmoe",
                                        "phimoe",
                                        "qwen2_moe",
                                        "qwen3_moe",
                                        "switch_transformers"};
  for (const std::string& family : families().names())
    EXPECT_TRUE(families_seen.contains(family) || others.contains(family)) << family;
}

/// The places of a layer: of attention (twice in a decoder that reads an encoder) and FFN.
void add_layers(std::vector<std::string>& out, int layers, int attentions) {
  for (int i = 0; i < layers; ++i) {
    for (int a = 0; a < attentions; ++a) {
      out.push_back(place("attention", 0.1));
      out.push_back(place("stream", 0.1));
    }
    out.push_back(place("stream", 0.1));
  }
}

/// The places of a family with small sizes and a dropout of 0.1.
std::vector<std::string> places_of_small(const std::string& family, const std::string& more = "") {
  ModelOptions options(family);
  config::Problems problems;
  config::Origins origins;
  json::Value value = json::parse_strict(
      R"({"num_layers": 2, "hidden_size": 32, "num_heads": 4, "dropout": 0.1)" + more + "}",
      "test");
  value["family"] = json::Value::string(family);
  config::read(value, options, problems, origins);
  problems.raise();
  return places_of(resolved(options));
}

TEST(Dropout, OfModelsOfModelCenterIsOnAttentionAndBranches) {
  std::vector<std::string> decoder, both;
  add_layers(decoder, 2, 1);
  add_layers(both, 2, 1);
  add_layers(both, 2, 2);

  EXPECT_EQ(places_of_small("cpm1", R"(, "attention_dropout": 0.1)"), decoder);
  EXPECT_EQ(places_of_small("cpm2"), both);
}

// transformers also drops between the projections of an expert.
TEST(Dropout, OfSwitchTransformersIsThatOfT5ButForExperts) {
  std::vector<std::string> t5 = places_of_small("t5");
  const std::string inner = place("ffn", 0.1);
  ASSERT_EQ(std::ranges::count(t5, inner), 4);
  // Of two layers the second one has experts, in both stacks.
  std::vector<std::string> expected;
  int seen = 0;
  for (const std::string& one : t5) {
    if (one == inner && ++seen % 2 == 0) continue;
    expected.push_back(one);
  }

  EXPECT_EQ(places_of_small("switch_transformers", R"(, "moe": {"router": {"jitter": 0}})"),
            expected);
}

TEST(Dropout, OfComposedModelsIsAtThePlacesOfTencentPretrain) {
  std::vector<std::string> encoder = {place("stream", 0.1)};
  add_layers(encoder, 2, 1);
  // Both sequences are embedded before the first layer.
  std::vector<std::string> both = {place("stream", 0.1), place("stream", 0.1)};
  add_layers(both, 2, 1);
  add_layers(both, 2, 2);

  EXPECT_EQ(places_of_small("compose"), encoder);
  EXPECT_EQ(places_of_small("compose",
                            R"(, "num_decoder_layers": 2, "embedding": ["word"],
                                 "mask": "fully_visible", "position": "relative",
                                 "decoder": "transformer")"),
            both);
}

}  // namespace
}  // namespace tessera::models
