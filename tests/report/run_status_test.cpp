// SPDX-License-Identifier: Apache-2.0
// What a run folder says of its run, while a process owns it and afterwards.
#include "tessera/report/run_status.h"

#include <filesystem>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tessera/base/files.h"
#include "tessera/report/run_board.h"
#include "tessera/report/run_view.h"

namespace tessera::report {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class RunStatuses : public ::testing::Test {
 protected:
  void write(const char* name, const std::string& text) {
    files::write_atomic(folder() / name, text);
  }
  [[nodiscard]] std::filesystem::path folder() const { return dir_.path(); }
  void train() {
    write("status.json", R"({"state": "running", "step": 0, "exit_code": 0, "message": ""})");
    write("ranks.json", R"({"ranks": [{}, {}]})");
  }
  /// Takes the lock in a process that ends, as one that was killed.
  void train_and_die() {
    train();
    const pid_t child = ::fork();
    if (child == 0) {
      const auto lock = files::Lock::try_acquire(folder() / "lock");
      ::_exit(lock == nullptr ? 1 : 0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_EQ(status, 0);
  }
  files::TempDir dir_;
};

TEST_F(RunStatuses, OfAnOwnedFolderAreRunning) {
  train();
  const auto lock = files::Lock::try_acquire(folder() / "lock");

  const RunStatus status = run_status(folder());

  EXPECT_EQ(status.state, "running");
  EXPECT_FALSE(status.exit_code.has_value());
  EXPECT_THAT(words_of(status), IsEmpty());
}

TEST_F(RunStatuses, OfAProcessThatIsGoneAreKilledEverywhere) {
  train_and_die();
  write("config.json", R"({"trainer": {"max_steps": 40}})");

  const RunStatus status = run_status(folder());

  EXPECT_EQ(status.state, "killed");
  EXPECT_THAT(status.message, HasSubstr("its process is gone (host "));
  EXPECT_THAT(status.go_on,
              HasSubstr("tessera train " + (folder() / "config.json").string() + " -n 2 (begins"));
  const RunView view(folder());
  EXPECT_EQ(view.summary().find("state")->as_string(), "killed");
  EXPECT_EQ(view.summary().find("eta_s"), nullptr);
  EXPECT_THAT(view.details(10).find("events")->dump(), HasSubstr("tessera train"));
  EXPECT_THAT(run_board(std::vector{view}, 200), Contains(HasSubstr("  killed  ")));
}

TEST_F(RunStatuses, KeepWhatTheRunSaidOfItsEnd) {
  write("status.json",
        R"({"state": "failed", "step": 3, "exit_code": 7, "message": "the loss is nan"})");

  const RunStatus status = run_status(folder());

  EXPECT_EQ(status.state, "failed");
  EXPECT_EQ(status.exit_code, 7);
  EXPECT_EQ(words_of(status), "the loss is nan");
}

TEST_F(RunStatuses, OfDamagedFilesAreUnknown) {
  EXPECT_THAT(run_status(folder()).state, IsEmpty());
  write("status.json", "{\"state\": 7, \"exit");
  EXPECT_THAT(run_status(folder()).state, IsEmpty());
  write("status.json", R"({"state": 7, "exit_code": "x", "message": []})");
  EXPECT_THAT(run_status(folder()).state, IsEmpty());
}

}  // namespace
}  // namespace tessera::report
