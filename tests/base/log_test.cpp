// SPDX-License-Identifier: Apache-2.0
#include "tessera/base/log.h"

#include <csignal>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"

namespace tessera::log {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

class Logs : public testing::Test {
 protected:
  void SetUp() override {
    set_sink([this](Level, std::string_view message) { heard_.emplace_back(message); });
  }
  void TearDown() override {
    set_sink(nullptr);
    set_level(Level::Info);
    open_file("");
  }
  std::vector<std::string> heard_;
};

TEST_F(Logs, DropWhatIsBelowTheLevel) {
  debug("a");
  info("b");
  set_level(Level::Error);
  warn("c");
  error("d");

  EXPECT_THAT(heard_, ElementsAre("b", "d"));
}

TEST_F(Logs, WarnOnceIsTrueToItsName) {
  warn_once("only once");
  warn_once("only once");
  warn_once("something else");

  EXPECT_THAT(heard_, ElementsAre("only once", "something else"));
}

TEST_F(Logs, ShowControlCharactersAsEscapes) {
  warn("the key a\x1b[2J");
  warn_once("the label \x07");

  EXPECT_THAT(heard_, ElementsAre("the key a\\x1b[2J", "the label \\x07"));
}

TEST_F(Logs, AppendToAFileWithTheirLevel) {
  const files::TempDir folder;
  const std::string path = (folder.path() / "logs" / "rank.log").string();

  open_file(path);
  info("first {}");  // not a format string
  open_file("");
  open_file(path);
  warn("second");

  const std::string text = files::read(path);
  EXPECT_THAT(text, HasSubstr("info first {}\n"));
  EXPECT_THAT(text, HasSubstr("warning second\n"));
}

TEST_F(Logs, AFullDiskIsReportedOnce) {
  const files::TempDir folder;
  const std::string path = (folder.path() / "rank.log").string();
  open_file(path);
  testing::internal::CaptureStderr();
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit nothing{0, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &nothing);

  info("first");
  info("second");

  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  EXPECT_THAT(heard_,
              ElementsAre(AllOf(HasSubstr("log file cannot be written any more"), HasSubstr(path)),
                          "first",
                          "second"));
}

TEST_F(Logs, AFileThatCannotBeOpenedIsAnIoError) {
  EXPECT_THROW(open_file("/proc/no/such/log"), Error);
}

}  // namespace
}  // namespace tessera::log
