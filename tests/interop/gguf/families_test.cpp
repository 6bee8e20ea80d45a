// SPDX-License-Identifier: Apache-2.0
// Each architecture of GGUF that a family declares, in and out: the files are those that the
// format's own package wrote (data/make_gguf_families.py: gguf 0.19.0).
#include <algorithm>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "interop/foreign_support.h"
#include "support/source_dir.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/files.h"
#include "tessera/interop/foreign.h"
#include "tessera/interop/gguf/reader.h"
#include "tessera/interop/gguf/tokenizer.h"
#include "tessera/interop/gguf/writer.h"
#include "tessera/interop/weights_of.h"
#include "tessera/models/family.h"
#include "tessera/models/gguf_names.h"

namespace tessera::interop {
namespace {

namespace fs = std::filesystem;
using test::values_of;
using testing::HasSubstr;

fs::path folder() {
  return tessera::test::source_dir() / "tests/interop/data/gguf_families";
}

/// Architecture -> {"config": ..., "tensors": [[name, shape], ...]}.
const json::Value& expected() {
  static const json::Value all =
      json::parse_strict(files::read(folder() / "expected.json"), "expected.json");
  return all;
}

Foreign opened(const std::string& architecture) {
  return open_foreign(folder() / (architecture + ".gguf")).value();
}

TEST(GgufFamilies, AreAllTested) {
  for (const std::string& architecture : models::gguf_architectures()) {
    // Files of these two are those of reader_test.cpp.
    if (architecture == "llama" || architecture == "gpt2") continue;
    EXPECT_NE(expected().find(architecture), nullptr) << architecture;
  }
}

TEST(GgufFamilies, HaveHuggingFacesTensors) {
  for (const auto& [architecture, model] : expected().members()) {
    SCOPED_TRACE(architecture);
    std::map<std::string, std::vector<float>> tensors;
    for (const auto& tensor : opened(architecture).weights)
      tensors.emplace(tensor.name, values_of(tensor));

    const auto& rows = model.find("tensors")->items();
    EXPECT_EQ(tensors.size(), rows.size());
    for (std::size_t k = 0; k < rows.size(); ++k) {
      const std::string name = rows[k].items()[0].as_string();
      std::size_t count = 1;
      for (const json::Value& size : rows[k].items()[1].items())
        count *= static_cast<std::size_t>(size.as_integer().value());
      std::vector<float> numbers(count);
      for (std::size_t i = 0; i < count; ++i)
        numbers[i] = static_cast<float>(1000 * k + i);
      ASSERT_TRUE(tensors.contains(name)) << name;
      EXPECT_EQ(tensors.at(name), numbers) << name;
    }
  }
}

TEST(GgufFamilies, HaveHuggingFacesKeys) {
  for (const auto& [architecture, model] : expected().members()) {
    SCOPED_TRACE(architecture);
    const json::Value ours = opened(architecture).model_config;
    for (const auto& [key, value] : model.find("config")->members()) {
      const json::Value* found = ours.find(key);
      ASSERT_NE(found, nullptr) << key;
      EXPECT_TRUE(*found == value) << key << ": " << found->dump();
    }
  }
}

/// The description of the model that a config.json asks for.
std::string description_of(const json::Value& config) {
  config::Problems problems;
  const models::ModelOptions options = models::options_from_hf(config);
  const models::Resolved out =
      models::resolve(options, *options->vocab_size, std::nullopt, problems, config::Origins());
  problems.raise();
  return out.description.dump();
}

class GgufFamilyFiles : public test::ForeignCheckpoints {
 protected:
  fs::path written(const std::vector<checkpoint::StreamedTensor>& weights,
                   const json::Value& config) {
    const fs::path file = path("written.gguf");
    fs::remove(file);
    write_gguf(file, plan_gguf(weights, {{"config.json", config.dump()}}, std::nullopt));
    return file;
  }
  static json::Value opened_again(const fs::path& file) {
    return open_foreign(file).value().model_config;
  }
};

// A config.json as a family writes it, with the keys of both versions of transformers.
TEST_F(GgufFamilyFiles, WrittenAgainAreTheModelsThatTheyWere) {
  for (const auto& [name, model] : expected().members()) {
    SCOPED_TRACE(name);
    if (name == "deepseek2_old") continue;  // is written as newer files are
    const Foreign before = opened(name);
    const models::ModelOptions options = models::options_from_hf(before.model_config);
    const json::Value config = models::families().get(options.family()).to_hf(*options);

    const fs::path file = written(before.weights, config);

    const Foreign after = open_foreign(file).value();
    EXPECT_EQ(description_of(after.model_config), description_of(before.model_config));
    const GgufFile ours(file), theirs(folder() / (name + ".gguf"));
    const std::string architecture(theirs.text("general.architecture").value());
    EXPECT_EQ(ours.text("general.architecture"), architecture);
    EXPECT_EQ(ours.tensors().size(), theirs.tensors().size());
    for (const GgufTensor& tensor : theirs.tensors()) {
      const GgufTensor* found = ours.tensor(tensor.name);
      ASSERT_NE(found, nullptr) << tensor.name;
      EXPECT_TRUE(std::ranges::equal(found->data, tensor.data)) << tensor.name;
    }
    for (const auto& [key, value] : theirs.values()) {
      // Two follow from what else is there; no config.json has the pooling of an encoder.
      const bool left_out = key.ends_with("original_context_length") ||
                            key.ends_with("pooling_type") ||
                            (architecture == "bloom" && key.ends_with("head_count_kv"));
      if (!key.starts_with(architecture + ".") || left_out) continue;
      const GgufValue* found = ours.find(key);
      ASSERT_NE(found, nullptr) << key;
      EXPECT_TRUE(std::ranges::equal(found->data, value.data)) << key;
    }
    fs::remove(file);
  }
}

// Before the projection from the latent vectors was written in two tensors, it was one.
TEST_F(GgufFamilyFiles, OfOldDeepseekAreWrittenAsNewOnes) {
  const Foreign before = opened("deepseek2_old");

  const fs::path file = written(before.weights, before.model_config);

  const GgufFile ours(file);
  EXPECT_EQ(ours.tensor("blk.0.attn_kv_b.weight"), nullptr);
  ASSERT_NE(ours.tensor("blk.0.attn_k_b.weight"), nullptr);
  EXPECT_EQ(ours.tensor("blk.0.attn_k_b.weight")->shape, (std::vector<std::int64_t>{2, 7, 6}));
  EXPECT_EQ(ours.integer("deepseek2.attention.head_count_kv"), 1);
  const Foreign after = open_foreign(file).value();
  EXPECT_EQ(description_of(after.model_config), description_of(before.model_config));
  std::map<std::string, std::vector<float>> theirs;
  for (const auto& tensor : before.weights)
    theirs.emplace(tensor.name, values_of(tensor));
  EXPECT_EQ(after.weights.size(), theirs.size());
  for (const auto& tensor : after.weights)
    EXPECT_EQ(values_of(tensor), theirs.at(tensor.name)) << tensor.name;
}

// A file whose settings the architecture doesn't have would give another model.
TEST_F(GgufFamilyFiles, WithOtherSwitchesThanTheArchitecturesAreRefused) {
  const auto refusal = [&](const std::string& architecture, const char* key, json::Value value) {
    const Foreign model = opened(architecture);
    json::Value config = model.model_config;
    config[key] = std::move(value);
    return test::error_of([&] {
             plan_gguf(model.weights, {{"config.json", config.dump()}}, {});
           })
        .text();
  };
  const auto no = json::Value::boolean(false), yes = json::Value::boolean(true);

  EXPECT_THAT(refusal("smollm3", "no_rope_layers", json::parse_strict("[1, 0]", "")),
              HasSubstr("no_rope_layers"));
  EXPECT_THAT(refusal("gemma2", "query_pre_attn_scalar", json::Value::integer(9)),
              HasSubstr("query_pre_attn_scalar"));
  EXPECT_THAT(refusal("gemma3", "attn_logit_softcapping", json::Value::integer(9)),
              HasSubstr("attn_logit_softcapping"));
  EXPECT_THAT(refusal("qwen2", "use_sliding_window", yes), HasSubstr("use_sliding_window"));
  EXPECT_THAT(refusal("gptneox", "attention_bias", no), HasSubstr("attention_bias"));
  EXPECT_THAT(refusal("gptneox", "hidden_act", json::Value::string("relu")),
              HasSubstr("hidden_act"));
  EXPECT_THAT(refusal("bert", "hidden_act", json::Value::string("relu")), HasSubstr("hidden_act"));
}

// llama.cpp has no separate architecture for Mixtral: files of llama with experts are read as it.
TEST_F(GgufFamilyFiles, OfMixtralAreFilesOfLlamaWithExperts) {
  const fs::path mixtral =
      tessera::test::source_dir() / "tests/golden/reference/models/mixtral_top1";
  json::Value config = json::parse_strict(files::read(mixtral / "config.json"), "config.json");
  config["output_router_logits"] = json::Value::boolean(false);  // of training alone
  config["head_dim"] = json::Value::integer(8);                  // which the file says
  std::vector<checkpoint::StreamedTensor> weights;
  std::map<std::string, std::vector<float>> theirs;
  for (const Weight& weight : open_weights(mixtral)) {
    weights.push_back(stream(weight, weight.name));
    theirs.emplace(weight.name, values_of(weights.back()));
  }

  const fs::path path = written(weights, config);

  const GgufFile file(path);
  EXPECT_EQ(file.text("general.architecture"), "llama");
  EXPECT_EQ(file.integer("llama.expert_count"), 5);
  EXPECT_EQ(file.integer("llama.expert_used_count"), 1);
  const GgufTensor* const gates = file.tensor("blk.1.ffn_gate_exps.weight");
  ASSERT_NE(gates, nullptr);
  EXPECT_EQ(gates->shape, (std::vector<std::int64_t>{5, 24, 32}));
  const auto* const numbers = reinterpret_cast<const float*>(gates->data.data());
  const std::vector<float>& third =
      theirs.at("model.layers.1.block_sparse_moe.experts.3.w1.weight");
  EXPECT_TRUE(std::ranges::equal(third, std::span(numbers + 3 * third.size(), third.size())));
  const Foreign again = open_foreign(path).value();
  EXPECT_EQ(description_of(again.model_config), description_of(config));
  EXPECT_EQ(again.weights.size(), weights.size());
  for (const checkpoint::StreamedTensor& tensor : again.weights)
    EXPECT_EQ(values_of(tensor), theirs.at(tensor.name)) << tensor.name;
}

// Experts of one layer are one tensor of the file.
TEST_F(GgufFamilyFiles, NeedEveryExpert) {
  const Foreign model = opened("qwen3moe");
  std::vector<checkpoint::StreamedTensor> some = model.weights;
  std::erase_if(some, [](const auto& tensor) {
    return tensor.name == "model.layers.1.mlp.experts.1.up_proj.weight";
  });

  const std::string error = test::error_of([&] {
                              plan_gguf(some, {{"config.json", model.model_config.dump()}}, {});
                            }).text();

  EXPECT_THAT(error, HasSubstr("experts"));
  EXPECT_THAT(error, HasSubstr("blk.1.ffn_up_exps.weight"));
}

// llama.cpp has no separate architecture for Mistral, and no window.
TEST_F(GgufFamilyFiles, OfMistralAreFilesOfLlamaWithTheirWindow) {
  const Foreign model = open_foreign(folder() / "../gguf_rotary.gguf").value();
  json::Value config = model.model_config;
  config["model_type"] = json::Value::string("mistral");
  config["rope_scaling"] = json::Value();
  config["sliding_window"] = json::Value();

  const GgufFile file(written(model.weights, config));

  const GgufFile theirs(folder() / "../gguf_rotary.gguf");
  EXPECT_EQ(file.text("general.architecture"), "llama");
  EXPECT_TRUE(std::ranges::equal(file.tensor("blk.1.attn_q.weight")->data,
                                 theirs.tensor("blk.1.attn_q.weight")->data));
  EXPECT_EQ(opened_again(file.path()).find("model_type")->as_string(), "llama");
  config["sliding_window"] = json::Value::integer(4);

  const json::Value again = opened_again(written(model.weights, config));

  EXPECT_EQ(again.find("model_type")->as_string(), "mistral");
  EXPECT_EQ(description_of(again), description_of(config));
  config["layer_types"] = json::parse_strict(R"(["full_attention", "sliding_attention"])", "");
  EXPECT_THAT(test::error_of([&] {
                plan_gguf(model.weights, {{"config.json", config.dump()}}, {});
              }).text(),
              HasSubstr("layer_types"));
}

// If the folder's model also sees images, its text model is written.
TEST_F(GgufFamilyFiles, OfATextModelWithinAnotherAreThoseOfTheTextModel) {
  const Foreign model = opened("gemma3");
  const json::Value config = json::Value::object(
      {{"model_type", json::Value::string("gemma3")}, {"text_config", model.model_config}});
  std::vector<checkpoint::StreamedTensor> weights = model.weights;
  for (checkpoint::StreamedTensor& tensor : weights)
    tensor.name = "language_model." + tensor.name;
  weights.push_back(weights.front());
  weights.back().name = "vision_tower.vision_model.post_layernorm.weight";

  const GgufFile ours(written(weights, config)), theirs(folder() / "gemma3.gguf");

  EXPECT_EQ(ours.tensors().size(), theirs.tensors().size());
  EXPECT_TRUE(std::ranges::equal(ours.tensor("blk.1.ffn_up.weight")->data,
                                 theirs.tensor("blk.1.ffn_up.weight")->data));
}

// Files of this architecture hold the layers alone, and their readers know no other letters.
TEST_F(GgufFamilyFiles, OfBertLeaveOutHeadsAndRefuseTokenizersWithUpperCase) {
  const Foreign model = opened("bert");
  std::vector<checkpoint::StreamedTensor> weights = model.weights;
  for (const char* head : {"bert.pooler.dense.weight", "cls.predictions.bias"}) {
    weights.push_back(weights.front());
    weights.back().name = head;
  }
  const auto tokenizer = [](const std::string& lowercase) {
    return R"({"model": {"type": "WordPiece", "unk_token": "[UNK]", "vocab": {"[UNK]": 0, "a": 1},
               "continuing_subword_prefix": "##"},
               "normalizer": {"type": "BertNormalizer", "lowercase": )" +
           lowercase + "}}";
  };

  const GgufFile file(written(weights, model.model_config));

  EXPECT_EQ(file.tensors().size(), model.weights.size());
  EXPECT_EQ(file.integer("tokenizer.ggml.token_type_count"), 2);
  EXPECT_NO_THROW((void)gguf_tokenizer_of({{"tokenizer.json", tokenizer("true")}}, 2));
  EXPECT_THAT(test::error_of([&] {
                (void)gguf_tokenizer_of({{"tokenizer.json", tokenizer("false")}}, 2);
              }).text(),
              HasSubstr("upper-case"));
}

}  // namespace
}  // namespace tessera::interop
