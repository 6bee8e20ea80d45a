// SPDX-License-Identifier: Apache-2.0
// Drafts: the remains of a killed process are removed by the next writer.
#include "tessera/checkpoint/draft.h"

#include <string>

#include "checkpoint/support.h"
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tessera/checkpoint/folders.h"

namespace tessera::checkpoint::test {
namespace {

std::vector<std::string> entries_of(const fs::path& folder) {
  std::vector<std::string> out;
  for (const auto& entry : fs::directory_iterator(folder))
    out.push_back(entry.path().filename().string());
  std::sort(out.begin(), out.end());
  return out;
}

/// Starts a process that is killed with SIGKILL while it writes a folder `target`.
pid_t die_writing(const fs::path& target) {
  const pid_t child = ::fork();
  if (child == 0) {
    const Draft draft(target);
    fs::create_directory(draft.path());
    spill(draft.path() / "half", "x");
    ::kill(::getpid(), SIGKILL);
  }
  ::waitpid(child, nullptr, 0);
  return child;
}

TEST(Drafts, OfAProcessThatWasKilledGoWithTheNextOfTheirTarget) {
  const files::TempDir dir;
  const pid_t died = die_writing(dir.path() / "model");
  die_writing(dir.path() / "model-2");
  ASSERT_TRUE(fs::exists(dir.path() / draft_name("model", died) / "half"));

  {
    Draft draft(dir.path() / "model");
    spill(draft.path(), "whole");
    draft.publish();
  }

  const auto left = entries_of(dir.path());
  ASSERT_EQ(left.size(), 2U);
  EXPECT_TRUE(left[0].starts_with(".tmp-model-2-")) << left[0];
  EXPECT_EQ(left[1], "model");
  EXPECT_EQ(slurp(dir.path() / "model"), "whole");
}

TEST(Drafts, OfProcessesThatRunAndNamesOfOthersStay) {
  const files::TempDir dir;
  const std::vector<std::string> others = {
      draft_name("model", ::getppid()), ".tmp-model-", ".tmp-model-x", "model-4711", ".tmp-model"};
  for (const std::string& name : others)
    spill(dir.path() / name, "x");

  { const Draft draft(dir.path() / "model"); }

  EXPECT_EQ(entries_of(dir.path()).size(), others.size());
}

TEST(Drafts, ReplaceWhatStandsThereAndLeaveNothing) {
  const files::TempDir dir;
  const fs::path target = dir.path() / "model";
  fs::create_directory(target);
  spill(target / "old", "x");

  {
    Draft draft(target);
    fs::create_directory(draft.path());
    spill(draft.path() / "new", "x");
    draft.publish();
  }

  EXPECT_EQ(entries_of(dir.path()), std::vector<std::string>{"model"});
  EXPECT_EQ(entries_of(target), std::vector<std::string>{"new"});
}

TEST(Drafts, ThatAreNotPublishedAreRemoved) {
  const files::TempDir dir;

  {
    const Draft draft(dir.path() / "model");
    spill(draft.path(), "half");
  }

  EXPECT_TRUE(entries_of(dir.path()).empty());
}

}  // namespace
}  // namespace tessera::checkpoint::test
