// SPDX-License-Identifier: Apache-2.0
#include "tessera/cli/output_progress.h"

#include <filesystem>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using Words = std::vector<std::string>;

class OutputsInProgress : public testing::Test {
 protected:
  files::TempDir folder_;
  fs::path out_ = folder_.path() / "out.jsonl";
  fs::path note_ = folder_.path() / "out.jsonl.progress";

  void SetUp() override { files::write_atomic(out_, "{}\n{}\n"); }
};

TEST_F(OutputsInProgress, AreContinuedByTheSameCommand) {
  const OutputProgress first(out_, "predict a");
  first.begin();

  EXPECT_EQ(OutputProgress(out_, "predict a").kept({2, 6}, 3).count, 2U);
  EXPECT_EQ(OutputProgress(out_, "predict a").kept({3, 9}, 3).count,
            3U);  // interrupted after its last line
  first.finish();
  EXPECT_FALSE(fs::exists(note_));
}

TEST_F(OutputsInProgress, AreNotMixedWithLinesOfAnotherCommand) {
  OutputProgress(out_, "predict a").begin();

  try {
    (void)OutputProgress(out_, "predict b").kept({2, 6}, 3).count;
    ADD_FAILURE() << "continued";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::Config);
    EXPECT_THAT(error.what(), HasSubstr("another model, other data or other options"));
    EXPECT_THAT(error.fix(), HasSubstr(note_.string()));
  }
  EXPECT_EQ(OutputProgress(out_, "predict b").kept({0, 0}, 3).count,
            0U);  // there is nothing to mix with
}

TEST_F(OutputsInProgress, AreReplacedWhenTheyAreFinished) {
  EXPECT_EQ(OutputProgress(out_, "predict a").kept({3, 9}, 3).count, 0U);
  EXPECT_EQ(OutputProgress(out_, "predict a").kept({2, 6}, 3).count, 2U);
}

TEST_F(OutputsInProgress, NeedNoNote) {
  const fs::path sink = "/dev/null";

  EXPECT_NO_THROW(OutputProgress(sink, "predict a").begin());
  EXPECT_FALSE(fs::exists("/dev/null.progress"));
  EXPECT_NO_THROW(OutputProgress(sink, "predict a").finish());
  EXPECT_NO_THROW(OutputProgress().finish());
}

TEST_F(OutputsInProgress, AreTheSameOnAnyRanksAndOtherwiseOnlyForTheSameWordsAndFiles) {
  const fs::path data = folder_.path() / "data";
  fs::create_directory(data);
  files::write_atomic(data / "weights", "1");
  const auto text = [&](const Words& words) { return command_text("generate", words, {data}); };
  const std::string one = text({"runs/a", "--top-k", "3", "--out", "x"});

  for (const Words& same : {Words{"runs/a", "--top-k", "3", "--out", "y"},
                            Words{"runs/a", "-n", "2", "--top-k", "3"},
                            Words{"runs/a", "--threads=2", "--top-k", "3", "-q"},
                            Words{"--batch-size", "4", "runs/a", "--quiet", "--top-k", "3"}})
    EXPECT_EQ(text(same), one);
  for (const Words& other : {Words{"runs/b", "--top-k", "3"}, Words{"runs/a", "--top-k", "4"}})
    EXPECT_NE(text(other), one);
  files::write_atomic(data / "weights", "22");
  EXPECT_NE(text({"runs/a", "--top-k", "3"}), one);
}

TEST_F(OutputsInProgress, AreNeverTheInput) {
  const fs::path link = folder_.path() / "link";
  fs::create_symlink(out_, link);

  EXPECT_THROW(require_other_file(out_, out_), Error);
  EXPECT_THROW(require_other_file(out_, link), Error);
  EXPECT_THROW(require_other_file(out_, folder_.path() / "." / "out.jsonl"), Error);
  EXPECT_NO_THROW(require_other_file(out_, folder_.path() / "other"));
  EXPECT_NO_THROW(require_other_file(out_, ""));
  EXPECT_NO_THROW(require_other_file("/dev/null", "/dev/null"));
}

}  // namespace
}  // namespace tessera::cli
