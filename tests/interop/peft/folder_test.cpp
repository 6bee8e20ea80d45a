// SPDX-License-Identifier: Apache-2.0
// Folders that PEFT writes: which settings are accepted, and which are refused.
#include "tessera/interop/peft/folder.h"

#include <algorithm>
#include <filesystem>
#include <string>

#include "golden/hf_models.h"
#include "support/source_dir.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/models/family.h"

namespace tessera::interop {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

const fs::path kGolden = tessera::test::source_dir() / "tests/golden/reference/peft";

/// A copy of a folder whose configuration was changed.
class Changed {
 public:
  explicit Changed(const std::string& from) {
    fs::copy(kGolden / from,
             folder_.path(),
             fs::copy_options::recursive | fs::copy_options::overwrite_existing);
    config_ = json::parse_strict(files::read(kGolden / from / "adapter_config.json"), "config");
  }
  Changed& set(const std::string& key, const std::string& value) {
    config_[key] = json::parse_strict(value, "value");
    files::write_atomic(folder_.path() / "adapter_config.json", config_.dump());
    return *this;
  }
  [[nodiscard]] std::string why() const {
    try {
      (void)open_peft(folder_.path());
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }
  [[nodiscard]] const fs::path& path() const { return folder_.path(); }

 private:
  files::TempDir folder_;
  json::Value config_;
};

TEST(Peft, ReadsWhatItSays) {
  const PeftFolder peft = open_peft(kGolden / "gpt2_rslora_bias");
  EXPECT_EQ(peft.options.type, "rslora");
  EXPECT_EQ(peft.options.r, 3);
  EXPECT_DOUBLE_EQ(peft.options.alpha, 9);
  EXPECT_EQ(peft.options.bias, models::AdapterBias::LoraOnly);
  EXPECT_EQ(peft.options.layers_pattern, std::vector<std::string>{"h"});
  EXPECT_EQ(peft.tensors.size(), 3U);
  EXPECT_TRUE(fs::exists(base_of(peft) / "config.json"));
}

TEST(Peft, RefusesWhatItDoesNotCompute) {
  const auto refused = [](const char* key, const char* value, const char* what) {
    Changed folder("llama_lora");
    folder.set(key, value);
    EXPECT_THAT(folder.why(), HasSubstr(what)) << key;
  };
  refused("peft_type", R"("IA3")", "IA3");
  refused("trainable_token_indices", "[1, 2]", "trainable_token_indices");
  // Version 0.18 stored the adapters of experts with inputs and outputs exchanged.
  Changed old("llama_lora");
  old.set("target_parameters", R"(["experts.up_proj"])").set("peft_version", R"("0.18.1")");
  EXPECT_THAT(old.why(), HasSubstr("target_parameters of PEFT 0.18.1"));
  EXPECT_EQ(old.set("peft_version", R"("0.19.0")").why(), "");
  refused("lora_bias", "true", "lora_bias");
  refused("init_lora_weights", R"("pissa")", "pissa");
  refused("bias", R"("some")", "bias");
  refused("r", "0", "r is 0");
  refused("r", R"("8")", "r should be a number");
  refused("lora_dropout", "1.5", "lora_dropout");
  refused("target_modules", "null", "target_modules");
  EXPECT_EQ(Changed("llama_lora").set("eva_config", "{}").set("inference_mode", "false").why(), "");
}

/// The adapter of PEFT's options on a base that a config.json describes.
models::Adapter adapter_of(const models::AdapterOptions& options, const json::Value& config) {
  const models::Family& family = models::families().get(models::family_of_hf(config));
  return models::find_adapter(options, golden::resolved_from_hf(config), family.weight_map);
}

TEST(Peft, TrainsEveryModuleWhoseNameEndsLikeASavedOne) {
  models::AdapterOptions options = open_peft(kGolden / "llama_lora").options;
  const json::Value llama = json::parse_strict(
      files::read(base_of(open_peft(kGolden / "llama_lora")) / "config.json"), "config");
  options.modules_to_save = {"norm"};
  const models::Adapter norms = adapter_of(options, llama);
  options.targets = json::parse_strict(R"(["q_lin"])", "targets");
  options.modules_to_save = {"classifier", "score"};
  const models::Adapter distilbert = adapter_of(options,
                                                json::parse_strict(R"({
      "model_type": "distilbert", "architectures": ["DistilBertForSequenceClassification"],
      "dim": 16, "hidden_dim": 24, "n_heads": 2, "n_layers": 1, "vocab_size": 20})",
                                                                   "config"));

  for (const char* const name : {"norm.weight", "layers.0.input_layernorm.weight"})
    EXPECT_TRUE(norms.trains(name)) << name;
  for (const char* const name : {"classifier.weight", "pre_classifier.weight"})
    EXPECT_TRUE(distilbert.trains(name)) << name;
}

// With bias "all" PEFT writes the biases of modules that it trains whole under three names.
TEST(Peft, ReadsBiasesThatAreWrittenTwice) {
  PeftFolder peft = open_peft(kGolden / "bert_cls_lora");
  const json::Value config =
      json::parse_strict(files::read(base_of(peft) / "config.json"), "config");
  const models::Family& family = models::families().get(models::family_of_hf(config));
  const models::Adapter adapter = adapter_of(peft.options, config);
  const std::string prefix = "base_model.model.classifier.";
  const auto bias = std::find_if(peft.tensors.begin(), peft.tensors.end(), [&](const Weight& one) {
    return one.name == prefix + "bias";
  });
  ASSERT_NE(bias, peft.tensors.end());
  Weight copy = *bias;

  for (const char* const within : {"modules_to_save.bias", "original_module.bias"}) {
    copy.name = prefix + within;
    peft.tensors.push_back(copy);
  }
  EXPECT_NO_THROW((void)peft_weights(peft, adapter, family.weight_map));
  copy.name = prefix + "bias";
  peft.tensors.push_back(copy);
  EXPECT_THROW((void)peft_weights(peft, adapter, family.weight_map), Error);
}

TEST(Peft, NamesWhatIsMissing) {
  const files::TempDir empty;
  EXPECT_FALSE(is_peft(empty.path()));
  EXPECT_THROW((void)open_peft(empty.path()), Error);
  Changed folder("llama_lora");
  fs::remove(folder.path() / "adapter_model.safetensors");
  EXPECT_THAT(folder.why(), HasSubstr("adapter_model.safetensors"));
  Changed elsewhere("llama_lora");
  elsewhere.set("base_model_name_or_path", R"("meta-llama/Llama-2")");
  const PeftFolder peft = open_peft(elsewhere.path());
  EXPECT_THROW((void)base_of(peft), Error);
}

}  // namespace
}  // namespace tessera::interop
