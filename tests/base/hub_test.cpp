// SPDX-License-Identifier: Apache-2.0
#include "tessera/base/hub.h"

#include <cstdlib>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/files.h"

namespace tessera::hub {
namespace {

using testing::HasSubstr;

/// A cache as `hf download` writes it, and a folder of TESSERA_MODELS, in place of those of the
/// user.
class Hub : public testing::Test {
 protected:
  Hub() {
    setenv("HF_HUB_CACHE", (box_.path() / "hub").c_str(), 1);
    setenv("TESSERA_MODELS", (box_.path() / "models").c_str(), 1);
  }
  ~Hub() override {
    unsetenv("HF_HUB_CACHE");
    unsetenv("TESSERA_MODELS");
  }

  static void model_in(const fs::path& folder) {
    fs::create_directories(folder);
    files::write_atomic(folder / "config.json", "{}");
  }
  fs::path snapshot(const std::string& repository, const std::string& commit) {
    const fs::path folder = box_.path() / "hub" / repository / "snapshots" / commit;
    model_in(folder);
    return folder;
  }
  void ref(const std::string& repository, const std::string& name, const std::string& text) {
    const fs::path refs = box_.path() / "hub" / repository / "refs";
    fs::create_directories((refs / name).parent_path());
    files::write_atomic(refs / name, text);
  }
  files::TempDir box_;
};

TEST(HubNames, HaveAnOwnerAModelAndARevision) {
  for (const char* const name : {"bert-base-uncased",
                                 "Qwen/Qwen2.5-0.5B",
                                 "gpt2@v1.0",
                                 "a/b@refs_1",
                                 "EleutherAI/gpt-neo-1.3B"})
    EXPECT_TRUE(is_model_name(name)) << name;
  for (const char* const name : {"",
                                 "/",
                                 "a/",
                                 "/a",
                                 "a/b/c",
                                 "../a",
                                 "./a",
                                 "a/..",
                                 "~/a",
                                 "a b",
                                 "a@",
                                 "a@../x",
                                 "models\\a",
                                 ".hidden"})
    EXPECT_FALSE(is_model_name(name)) << name;
  EXPECT_FALSE(is_model_name(std::string(200, 'a')));
}

TEST_F(Hub, FindsTheSnapshotOfARevision) {
  const fs::path first = snapshot("models--Qwen--Q-1", "aaaa"),
                 second = snapshot("models--Qwen--Q-1", "bbbb");
  ref("models--Qwen--Q-1", "main", "aaaa\n");
  ref("models--Qwen--Q-1", "v2", "bbbb");

  EXPECT_EQ(find_model("Qwen/Q-1"), first);
  EXPECT_EQ(find_model("Qwen/Q-1@v2"), second);
  EXPECT_EQ(find_model("Qwen/Q-1@bbbb"), second) << "the commit itself";
  EXPECT_EQ(find_model("Qwen/Q-1@cccc"), std::nullopt);
  EXPECT_EQ(find_model("Qwen/Q-2"), std::nullopt);
}

TEST_F(Hub, LooksIntoFoldersOfModelsFirst) {
  snapshot("models--Qwen--Q-1", "aaaa");
  ref("models--Qwen--Q-1", "main", "aaaa");
  const fs::path own = box_.path() / "models" / "Q-1",
                 whole = box_.path() / "models" / "Qwen" / "Q-1";
  model_in(own);
  EXPECT_EQ(find_model("Qwen/Q-1"), own);

  model_in(whole);
  EXPECT_EQ(find_model("Qwen/Q-1"), whole);
}

TEST_F(Hub, FollowsNoReferenceOutOfItsFolder) {
  model_in(box_.path() / "hub" / "elsewhere");
  snapshot("models--a--b", "aaaa");
  for (const char* const text :
       {"../../elsewhere", "/etc", "aaaa/../../../elsewhere", "", "a\nb"}) {
    ref("models--a--b", "main", text);
    EXPECT_EQ(find_model("a/b"), std::nullopt) << text;
  }
}

TEST_F(Hub, APathIsAPathAndAnUnknownNameStays) {
  snapshot("models--a--b", "aaaa");
  ref("models--a--b", "main", "aaaa");

  EXPECT_EQ(model_path(box_.path().string()), box_.path());
  EXPECT_EQ(model_path("no/such"), "no/such");
  EXPECT_EQ(model_path("/no/such/path"), "/no/such/path");
  EXPECT_THAT(model_path("a/b").string(), HasSubstr("snapshots/aaaa"));
  EXPECT_THAT(how_to_fetch("a/b"), HasSubstr("hf download a/b;"));
  EXPECT_THAT(how_to_fetch("a/b@v2"), HasSubstr("hf download a/b --revision v2;"));
}

TEST_F(Hub, SuggestsWhatAFolderOfTheWorkingDirectoryHolds) {
  const fs::path before = fs::current_path();
  fs::current_path(box_.path());
  EXPECT_THAT(how_to_fetch("runs/fine"), HasSubstr("there is no folder runs here"));
  fs::create_directories("runs");
  EXPECT_EQ(how_to_fetch("runs/fine"), "the folder runs is empty");
  fs::create_directories("runs/fine2");
  EXPECT_EQ(how_to_fetch("runs/fine"), "the folder runs has no fine: did you mean \"fine2\"?");
  EXPECT_THAT(how_to_fetch("owner/model"), HasSubstr("hf download owner/model;"));
  fs::current_path(before);
}

TEST_F(Hub, ListsFoldersAndTheCacheByName) {
  snapshot("models--z--last", "aaaa");
  ref("models--z--last", "main", "aaaa");
  snapshot("models--no-main", "cccc");
  fs::create_directories(box_.path() / "hub" / "models--empty");
  fs::create_directories(box_.path() / "hub" / "datasets--a--b" / "snapshots" / "aaaa");
  model_in(box_.path() / "models" / "plain");
  model_in(box_.path() / "models" / "owner" / "model");

  std::vector<std::string> names;
  for (const LocalModel& model : local_models())
    names.push_back(model.name);

  EXPECT_THAT(names, testing::ElementsAre("no-main", "owner/model", "plain", "z/last"));
  EXPECT_EQ(bytes_of_folder(box_.path() / "models" / "plain"), 2U);
  EXPECT_EQ(bytes_of_folder("/no/such/folder"), 0U);
}

}  // namespace
}  // namespace tessera::hub
