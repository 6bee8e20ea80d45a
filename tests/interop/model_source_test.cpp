// SPDX-License-Identifier: Apache-2.0
// Parts of a plan that come from elsewhere: a model's folder and its tokenizer.
#include "tessera/models/model_source.h"

#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "support/source_dir.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/inputs.h"
#include "tessera/planner/make_plan.h"
#include "tessera/planner/plan.h"
#include "tessera/text/tokenizer.h"

namespace tessera::interop {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

TEST(ModelSources, AreFoundFromAnotherFolderByTheirTokenizersFiles) {
  const fs::path shipped = text::share_dir() / "gpt2";
  const std::string vocab = fs::relative(shipped / "vocab.json").string(),
                    merges = fs::relative(shipped / "merges.txt").string();
  const json::Value config =
      json::parse(R"({"model": {"preset": "nano"}, "data": {"train": "a.txt"},
                      "train_batch_size": 1,
                      "tokenizer": {"type": "gpt2", "vocab": ")" +
                      vocab + R"(", "merges": ")" + merges + "\"}}",
                  "c.json");

  const planner::Plan plan = planner::make_plan(config, 1, "c.json");

  const json::Value* const tokenizer = plan.resolved().find("tokenizer");
  for (const char* key : {"vocab", "merges"}) {
    const fs::path file = tokenizer->find(key)->as_string();
    EXPECT_TRUE(file.is_absolute()) << file;
    EXPECT_TRUE(fs::exists(file)) << file;
  }
}

TEST(ModelSources, HaveAConfigJsonThatEnds) {
  const files::TempDir folder;
  fs::create_symlink("/dev/zero", folder.path() / "config.json");
  try {
    (void)models::open_model_source(folder.path());
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::Format);
    EXPECT_THAT(error.what(), HasSubstr("config.json is not a plain file"));
  }
}

TEST(ModelSources, ThatHaveAPublishedNameAreFoundInTheCacheOfHuggingFace) {
  const files::TempDir folder;
  const fs::path model = folder.path() / "models--someone--tiny";
  fs::create_directories(model / "refs");
  fs::create_directories(model / "snapshots/0a1b");
  files::write_atomic(model / "refs/main", "0a1b\n");
  const auto refusal = [](const char* name) -> std::string {
    try {
      (void)models::open_model_source(name);
    } catch (const Error& error) {
      return error.text();
    }
    return "";
  };
  setenv("HF_HUB_CACHE", folder.path().c_str(), 1);
  const std::string cached = refusal("someone/tiny"), other = refusal("someone/other");
  unsetenv("HF_HUB_CACHE");

  // The snapshot is opened: what it lacks is missing there.
  EXPECT_THAT(cached, HasSubstr((model / "snapshots/0a1b").string()));
  EXPECT_THAT(other, HasSubstr("hf download someone/other"));
}

TEST(ModelSources, InOneFileNeedAConfigJsonNextToThem) {
  const files::TempDir folder;
  const auto refusal = [&](const char* name) -> Error {
    files::write_atomic(folder.path() / name, "no weights are read");
    try {
      (void)models::open_model_source(folder.path() / name);
    } catch (const Error& error) {
      return error;
    }
    return {Error::Kind::Bug, "no error"};
  };

  for (const char* name : {"model.safetensors", "pytorch_model.bin", "lone.pth", "lone.pt"}) {
    const Error error = refusal(name);
    EXPECT_EQ(error.kind(), Error::Kind::Format);
    EXPECT_THAT(error.what(), HasSubstr(std::string(name) + ": no config.json next to it"));
  }
  const Error error = refusal("notes.txt");
  EXPECT_EQ(error.kind(), Error::Kind::Config);
  EXPECT_THAT(error.what(), HasSubstr("notes.txt is not a file of weights"));
}

// Hosts compare the files that are noted: whichever decides the model must be among them.
TEST(ModelSources, NoteTheFilesThatDecideThem) {
  const files::TempDir folder;
  const fs::path golden = tessera::test::source_dir() / "tests/golden/reference/peft";
  for (const char* name : {"base_gpt2", "gpt2_lora"})
    fs::copy(golden / name, folder.path() / name, fs::copy_options::recursive);
  const fs::path base = folder.path() / "base_gpt2", adapter = folder.path() / "gpt2_lora";
  const std::vector<fs::path> of_base = {base / "config.json", base / "model.safetensors"};
  const std::vector<fs::path> of_adapter = {adapter / "adapter_config.json",
                                            adapter / "adapter_model.safetensors"};
  std::vector<fs::path> both = of_base;
  both.insert(both.end(), of_adapter.begin(), of_adapter.end());
  const auto noted = [](const auto& open) {
    std::vector<Input> inputs;
    const InputLog log(inputs);
    open();
    return inputs;
  };

  for (const auto& [path, files] : {std::pair{base, of_base},
                                    std::pair{base / "model.safetensors", of_base},
                                    std::pair{adapter, both}}) {
    const auto inputs = noted([&] { (void)models::open_model_source(path); });
    ASSERT_EQ(inputs.size(), 1U) << path;
    EXPECT_EQ(inputs.front().where, path.string());
    std::vector<fs::path> found;
    for (const fs::path& file : inputs.front().files)
      found.push_back(fs::weakly_canonical(file));
    EXPECT_EQ(found, files) << path;
  }
  const auto inputs = noted([&] { (void)models::open_adapter_options(adapter); });
  ASSERT_EQ(inputs.size(), 1U);
  EXPECT_EQ(inputs.front().files, of_adapter);
}

}  // namespace
}  // namespace tessera::interop
