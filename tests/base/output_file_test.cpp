// SPDX-License-Identifier: Apache-2.0
// An output keeps its former contents until the first write.
#include "tessera/base/output_file.h"

#include <filesystem>

#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

class OutputFiles : public testing::Test {
 protected:
  files::TempDir folder_;
  fs::path path_ = folder_.path() / "out";

  void SetUp() override { files::write_atomic(path_, "one\ntwo\nth"); }
};

TEST_F(OutputFiles, AreUnchangedUntilTheFirstWrite) {
  OutputFile file;
  file.open(path_);
  file.flush();
  EXPECT_EQ(files::read(path_), "one\ntwo\nth");

  file.write("new\n");
  file.flush();

  EXPECT_EQ(files::read(path_), "new\n");
}

TEST_F(OutputFiles, GoOnBehindTheBytesThatAreKept) {
  OutputFile file;
  file.open(path_, 8);
  file.write("three\n");
  file.write("four\n");
  file.close();

  EXPECT_EQ(files::read(path_), "one\ntwo\nthree\nfour\n");
}

TEST_F(OutputFiles, LoseWhatIsNotKeptIfNothingIsWritten) {
  OutputFile file;
  file.open(path_, 4);
  file.close();
  EXPECT_EQ(files::read(path_), "one\n");

  file.open(path_);
  file.replace();
  EXPECT_EQ(files::read(path_), "");
}

TEST_F(OutputFiles, OfACommandThatIsRefusedAreAsTheyWere) {
  {
    OutputFile file;
    file.open(path_);
  }
  EXPECT_EQ(files::read(path_), "one\ntwo\nth");
}

TEST_F(OutputFiles, MayBeDevices) {
  OutputFile file;
  file.open("/dev/null");
  EXPECT_NO_THROW(file.write("x"));
  EXPECT_NO_THROW(file.close());
}

TEST_F(OutputFiles, ThatCannotBeWrittenAreAnErrorAtTheStart) {
  OutputFile file;
  EXPECT_THROW(file.open(folder_.path() / "missing" / "out"), Error);
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  OutputFile full;
  full.open("/dev/full");
  full.write("x");
  EXPECT_THROW(full.flush(), Error);
}

}  // namespace
}  // namespace tessera
