// SPDX-License-Identifier: Apache-2.0
// tessera convert --overwrite replaces what a conversion wrote, and nothing else.
#include <filesystem>
#include <string>
#include <vector>

#include "cli/convert_support.h"
#include "cli/program.h"
#include "support/source_dir.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/files.h"

namespace tessera::cli {
namespace {

using ::testing::HasSubstr;

const fs::path kInterop = tessera::test::source_dir() / "tests/golden/reference/interop";

class Overwrite : public Conversions {
 protected:
  /// Checks that the conversion is rejected with the reason, and that `kept` still exists.
  void refused(std::vector<std::string> words, const std::string& kept, const std::string& reason) {
    words.emplace_back("--overwrite");
    const Outcome o = convert(words);
    EXPECT_EQ(o.code, 2) << reason << o.err;
    EXPECT_THAT(o.err, HasSubstr(reason));
    EXPECT_TRUE(fs::exists(path(kept))) << kept;
  }
  void again(std::vector<std::string> words) {
    for (int i = 0; i < 2; ++i) {
      const Outcome o = convert(words);
      EXPECT_EQ(o.code, 0) << words[1] << o.err;
      if (i == 0) words.emplace_back("--overwrite");
    }
  }
  void put(const std::string& name) {
    fs::create_directories(fs::path(path(name)).parent_path());
    files::write_atomic(path(name), "mine");
  }
};

TEST_F(Overwrite, ReplacesWhatEveryFormOfAConversionWrote) {
  const fs::path loop = kInterop / "torch_tutorial";
  again({run_folder(), path("hf")});
  again({run_folder(), path("shards"), "--shard-size", "2kB"});
  again({run_folder(), path("bin"), "--to", "torch"});
  again({run_folder(), path("lone.pt")});
  again({loop, path("ours"), "--to", "tessera"});
  again({loop, path("model_000005.pth")});
  again({loop, path("ds"), "--to", "deepspeed-universal"});
  fs::create_directory(path("empty"));
  EXPECT_EQ(convert({run_folder(), path("empty"), "--overwrite"}).code, 0);
}

TEST_F(Overwrite, LeavesAFolderWithOneMoreThingInItAndNamesThat) {
  ASSERT_EQ(convert({run_folder(), path("hf")}).code, 0);
  put("hf/notes.txt");
  refused({run_folder(), path("hf")}, "hf/notes.txt", "hf/notes.txt is kept");
  fs::remove(path("hf/notes.txt"));
  put("hf/sub/x");
  refused({run_folder(), path("hf")}, "hf/sub/x", "hf/sub is kept");
  fs::remove_all(path("hf/sub"));
  fs::create_symlink(path("hf/config.json"), path("hf/vocab.json"));
  refused({run_folder(), path("hf")}, "hf/config.json", "hf/vocab.json is kept");
}

TEST_F(Overwrite, LeavesOtherFilesOfAFolderWithAConfigOrAManifest) {
  put("a/config.json");
  put("a/thesis.tex");
  put("b/manifest.json");
  put("b/photo.jpg");
  put("c/config.json");

  refused({run_folder(), path("a")}, "a/thesis.tex", "a/thesis.tex is kept");
  refused({run_folder(), path("b")}, "b/photo.jpg", "b/photo.jpg is kept");
  refused({run_folder(), path("c")}, "c/config.json", "is not the folder of a converted model");
}

TEST_F(Overwrite, LeavesOtherFilesNextToAndInAUniversalCheckpoint) {
  const fs::path loop = kInterop / "torch_tutorial";
  const std::vector<std::string> words = {loop, path("ds"), "--to", "deepspeed-universal"};
  ASSERT_EQ(convert(words).code, 0);
  fs::path tag;
  for (const auto& entry : fs::directory_iterator(path("ds"))) {
    if (entry.is_directory()) tag = fs::path("ds") / entry.path().filename();
  }
  for (const fs::path& mine : std::vector<fs::path>{"ds/latest",
                                                    "ds/global_step9/x.pt",
                                                    tag / "notes.txt",
                                                    tag / "zero/notes.txt",
                                                    tag / "zero/transformer.wte.weight/lr.pt"}) {
    put(mine);
    refused(words, mine, "is kept: it was not written by a conversion");
    fs::remove_all(path(mine));
    if (mine.string().starts_with("ds/global_step9")) fs::remove(path("ds/global_step9"));
  }
  EXPECT_EQ(convert({words[0], words[1], words[2], words[3], "--overwrite"}).code, 0);
}

TEST_F(Overwrite, LeavesTheCheckpointsOfARun) {
  ASSERT_EQ(convert({run_folder(), path("hf")}).code, 0);
  const std::string step = "run/checkpoints/step-00000003";

  refused({path("hf"), path(step), "--to", "tessera"},
          step + "/manifest.json",
          "is the checkpoint of a run");
  refused({run_folder(), path(step)}, step + "/manifest.json", "lies in");
}

TEST_F(Overwrite, LeavesFilesThatItDidNotWrite) {
  put("train.bin");

  refused({run_folder(), path("train.bin")}, "train.bin", "train.bin is kept");
}

TEST_F(Overwrite, LeavesWhatItReads) {
  ASSERT_EQ(convert({run_folder(), path("hf")}).code, 0);
  ASSERT_EQ(convert({run_folder(), path("hf/pytorch_model.bin")}).code, 0);
  fs::create_directory_symlink(path("hf"), path("link"));

  refused({path("hf/model.safetensors"), path("hf")}, "hf/model.safetensors", "holds");
  refused({path("hf"), path("hf/pytorch_model.bin")}, "hf/pytorch_model.bin", "lies in");
  refused({path("hf"), path("link/pytorch_model.bin")}, "hf/pytorch_model.bin", "lies in");
  refused({path("hf"), path("hf")}, "hf/model.safetensors", "is the source of the conversion");
}

}  // namespace
}  // namespace tessera::cli
