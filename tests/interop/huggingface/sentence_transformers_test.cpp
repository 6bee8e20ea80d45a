// SPDX-License-Identifier: Apache-2.0
// Settings of embeddings in folders of sentence-transformers, and matrices as NumPy reads them.
#include "tessera/interop/huggingface/sentence_transformers.h"

#include <array>
#include <filesystem>
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/interop/npy.h"

namespace tessera::interop {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class SentenceFolder : public testing::Test {
 protected:
  void write(const std::string& name, const std::string& text) const {
    const fs::path path = folder_.path() / name;
    fs::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << text;
  }
  /// Writes a Transformer at `path`, followed by modules of these kinds.
  void write_modules(const std::string& path, const std::vector<std::string>& kinds) const {
    std::string text = R"([{"idx": 0, "path": ")" + path +
                       R"(", "type": "sentence_transformers.models.Transformer"})";
    for (std::size_t i = 0; i < kinds.size(); ++i) {
      const std::string number = std::to_string(i + 1);
      text += R"(, {"idx": )" + number + R"(, "path": ")" + number + "_" + kinds[i] +
              R"(", "type": "sentence_transformers.models.)" + kinds[i] + "\"}";
    }
    write("modules.json", text + "]");
  }
  [[nodiscard]] SentenceModel read() const { return sentence_model_of(folder_.path()).value(); }
  [[nodiscard]] std::string refused() const {
    try {
      (void)sentence_model_of(folder_.path());
    } catch (const Error& error) {
      return error.what();
    }
    return "nothing was refused";
  }
  files::TempDir folder_;
};

TEST_F(SentenceFolder, SaysHowTextsAreReadAndPooled) {
  write_modules("", {"Pooling", "Normalize"});
  write("1_Pooling/config.json",
        R"({"pooling_mode_cls_token": false, "pooling_mode_mean_tokens": true})");
  write("sentence_bert_config.json", R"({"max_seq_length": 256, "do_lower_case": true})");
  write(
      "config_sentence_transformers.json",
      R"({"prompts": {"query": "query: ", "passage": "passage: "}, "default_prompt_name": "query"})");

  const SentenceModel model = read();

  EXPECT_EQ(model.folder, folder_.path());
  EXPECT_EQ(model.pooling, "mean");
  EXPECT_TRUE(model.normalize);
  EXPECT_EQ(model.max_tokens, 256);
  EXPECT_TRUE(model.lower_case);
  EXPECT_EQ(model.prompt, "query: ");
}

TEST_F(SentenceFolder, MayHaveItsTransformerInAFolderOfItsOwn) {
  write_modules("0_Transformer", {"Pooling", "Dropout"});
  write("1_Pooling/config.json", R"({"pooling_mode_lasttoken": true})");
  write("0_Transformer/sentence_xyz_config.json", R"({"max_seq_length": null})");

  const SentenceModel model = read();

  EXPECT_EQ(model.folder, folder_.path() / "0_Transformer");
  EXPECT_EQ(model.pooling, "last");
  EXPECT_FALSE(model.normalize);
  EXPECT_FALSE(model.max_tokens);
  EXPECT_EQ(model.prompt, "");
}

TEST_F(SentenceFolder, KnowsTheWordThatNewVersionsWrite) {
  write_modules("", {"Pooling"});
  write("1_Pooling/config.json", R"({"pooling_mode": "cls", "embedding_dimension": 8})");
  EXPECT_EQ(read().pooling, "cls");

  write("1_Pooling/config.json", R"({"pooling_mode": "lasttoken"})");
  EXPECT_EQ(read().pooling, "last");
}

TEST_F(SentenceFolder, IsRefusedWhereItComputesSomethingElse) {
  write_modules("", {"Pooling", "Dense"});
  write("1_Pooling/config.json", R"({"pooling_mode_cls_token": true})");
  EXPECT_THAT(refused(), HasSubstr("a module Dense"));

  write_modules("", {"Pooling"});
  write("1_Pooling/config.json", R"({"pooling_mode_max_tokens": true})");
  EXPECT_THAT(refused(), HasSubstr("pooling by max"));

  write("1_Pooling/config.json",
        R"({"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": true})");
  EXPECT_THAT(refused(), HasSubstr("several ways"));

  write("1_Pooling/config.json", R"({"pooling_mode_cls_token": true, "include_prompt": false})");
  write("config_sentence_transformers.json",
        R"({"prompts": {"q": "q: "}, "default_prompt_name": "q"})");
  EXPECT_THAT(refused(), HasSubstr("prompt"));
}

TEST_F(SentenceFolder, IsRefusedWhereItsFilesDoNotHoldTogether) {
  EXPECT_FALSE(sentence_model_of(folder_.path()));
  EXPECT_FALSE(sentence_model_of(folder_.path() / "nothing"));

  write_modules("../elsewhere", {"Pooling"});
  EXPECT_THAT(refused(), HasSubstr("out of the folder"));

  write_modules("", {"Normalize", "Pooling"});
  EXPECT_THAT(refused(), HasSubstr("a module Normalize"));

  write_modules("", {});
  EXPECT_THAT(refused(), HasSubstr("names no Transformer with a Pooling"));

  write_modules("", {"Pooling"});
  write("1_Pooling/config.json", R"({"pooling_mode_cls_token": true})");
  write("sentence_bert_config.json", R"({"max_seq_length": 0})");
  EXPECT_THAT(refused(), HasSubstr("max_seq_length"));
  write("sentence_bert_config.json", "[]");
  EXPECT_THAT(refused(), HasSubstr("not a JSON object"));
}

// transformers writes int(1e30) where there is no limit.
TEST_F(SentenceFolder, HasTheTokenizersLimitWhereThereIsOne) {
  EXPECT_FALSE(tokenizer_limit_of(folder_.path()));
  write("tokenizer_config.json", R"({"model_max_length": 1000000000000000019884624838656})");
  EXPECT_FALSE(tokenizer_limit_of(folder_.path()));
  write("tokenizer_config.json", R"({"model_max_length": 512})");
  EXPECT_EQ(tokenizer_limit_of(folder_.path()), 512);
}

// The bytes that numpy 2.4.6 saves.
TEST(Npy, HasTheBytesOfNumPy) {
  const files::TempDir folder;
  const fs::path path = folder.path() / "m.npy";

  NpyWriter writer(path, 2, 3);
  writer.add(std::array<float, 3>{1, 2, 3});
  writer.add(std::array<float, 3>{4, 5, -0.5});
  writer.close();

  std::string wanted("\x93NUMPY\x01\x00\x76\x00", 10);
  wanted += "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }";
  wanted.resize(127, ' ');
  wanted += '\n';
  const std::array<float, 6> values = {1, 2, 3, 4, 5, -0.5};
  wanted.append(reinterpret_cast<const char*>(values.data()), sizeof values);
  EXPECT_EQ(files::read(path), wanted);
}

}  // namespace
}  // namespace tessera::interop
