// SPDX-License-Identifier: Apache-2.0
// labels: slow multiprocess
#include <set>

#include "checkpoint/killed.h"
#include "checkpoint/support.h"
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/checkpoint/folders.h"

namespace tessera::checkpoint::test {
namespace {

const std::vector<Spec> kModel = {{"wte", DType::F32, {13, 8}},
                                  {"optimizer.exp_avg.wte", DType::F32, {13, 8}}};
constexpr std::uint64_t kOld = 1, kNew = 2;
constexpr int kRanks = 2;

std::string name_of(How how) {
  return how == How::Waiting      ? "Waiting"
         : how == How::Background ? "Background"
                                  : "BackgroundThenWaiting";
}

class EverySave : public ::testing::TestWithParam<How> {
 protected:
  void expect_survival(std::int64_t old_step, std::int64_t step, bool can_exchange);
};

INSTANTIATE_TEST_SUITE_P(,
                         EverySave,
                         ::testing::Values(How::Waiting,
                                           How::Background,
                                           How::BackgroundThenWaiting),
                         [](const auto& info) { return name_of(info.param); });

/// Kills a save of `step` over an older one before each of its changes in turn, and checks what
/// remains.
void EverySave::expect_survival(std::int64_t old_step, std::int64_t step, bool can_exchange) {
  bool died = true;
  int n = 0;
  for (; died; ++n) {
    SCOPED_TRACE("change " + std::to_string(n));
    const files::TempDir dir;
    save_model(dir.path(), old_step, kModel, ranges, kRanks, kOld);

    died = killed_at(n, can_exchange, [&](Storage& disk) {
      save_model(disk, dir.path(), step, kModel, columns, kRanks, kNew, GetParam());
    });

    const auto found = list(dir.path());
    ASSERT_FALSE(found.empty());
    for (const auto& folder : found)
      Checkpoint(folder).verify();
    const bool new_there = loads_exactly(found.back(), kModel, ranges, 1, kNew);
    if (old_step != step) {
      EXPECT_TRUE(loads_exactly(found.front(), kModel, ranges, 1, kOld));
      EXPECT_EQ(found.size(), new_there ? 2U : 1U);
    } else {
      EXPECT_EQ(found.size(), 1U);
      EXPECT_TRUE(new_there || loads_exactly(found.back(), kModel, ranges, 1, kOld));
    }
    EXPECT_TRUE(died || new_there);

    // Whatever remains, the next save succeeds and cleans up.
    save_model(dir.path(), step + 1, kModel, ranges, 1, kNew);
    EXPECT_TRUE(loads_exactly(*newest(dir.path()), kModel, ranges, 1, kNew));
    for (const auto& entry : fs::directory_iterator(dir.path())) {
      EXPECT_NE(entry.path().filename().string().front(), '.') << entry.path();
    }
  }
  EXPECT_GT(n,
            20);  // folder, four files with several writes each, renames: there was something to
                  // interrupt
}

TEST_P(EverySave, ThatIsKilledLeavesThePreviousCheckpointAndAWholeNewOneOrNone) {
  expect_survival(100, 200, true);
}

TEST_P(EverySave, ThatIsKilledWhileReplacingAStepLeavesTheOldOrTheNewOne) {
  expect_survival(100, 100, true);
}

TEST_P(EverySave, ThatIsKilledWhileReplacingAStepWorksWhereNamesCannotBeSwapped) {
  expect_survival(100, 100, false);
}

TEST(KilledPrune, LeavesOnlyWholeCheckpoints) {
  bool died = true;
  for (int n = 0; died; ++n) {
    SCOPED_TRACE("change " + std::to_string(n));
    const files::TempDir dir;
    for (const int step : {1, 2, 3})
      save_model(dir.path(), step, kModel, ranges, 1, kNew);

    died = killed_at(n, true, [&](Storage& disk) { prune(disk, dir.path(), 1); });

    for (const auto& folder : list(dir.path()))
      EXPECT_TRUE(loads_exactly(folder, kModel, ranges, 1, kNew));
    prune(dir.path(), 1);
    EXPECT_EQ(list(dir.path()).size(), 1U);
    EXPECT_EQ(std::distance(fs::directory_iterator(dir.path()), fs::directory_iterator()),
              2);  // and `latest`
  }
}

TEST_P(EverySave, ThatIsKilledAtAnyTimeOfItsPruningLeavesTheOldOrTheNewOne) {
  bool died = true;
  for (int n = 0; died; ++n) {
    SCOPED_TRACE("change " + std::to_string(n));
    const files::TempDir dir;
    save_model(dir.path(), 1, kModel, ranges, 1, kOld);

    died = killed_at(n, true, [&](Storage& disk) {
      save_model(disk, dir.path(), 2, kModel, ranges, 1, kNew, GetParam(), [&] {
        prune(disk, dir.path(), 1);
      });
    });

    const auto found = list(dir.path());
    ASSERT_FALSE(found.empty());
    for (const auto& folder : found)
      EXPECT_TRUE(loads_exactly(folder, kModel, ranges, 1, *step_of(folder) == 1 ? kOld : kNew));
    EXPECT_TRUE(died || (found.size() == 1 && *step_of(found[0]) == 2));
  }
}

/// Every call of the disk fails in turn: all ranks report the same error, and no file remains.
TEST_P(EverySave, ThatFailsIsTheSameErrorOnEveryRankAndLeavesNothing) {
  bool failed = true;
  for (int n = 0; failed; ++n) {
    SCOPED_TRACE("change " + std::to_string(n));
    const files::TempDir dir;
    save_model(dir.path(), 1, kModel, ranges, kRanks, kOld);
    int left = n;
    bool hint = false;
    std::string place;
    WatchedStorage disk([&](const std::string& operation, const fs::path& path) {
      if (left-- != 0) return;
      place = path.string();
      hint = path.filename() == "latest";
      throw Error(Error::Kind::Io,
                  "cannot " + operation + " " + place + ": no space left",
                  "free some space");
    });
    std::vector<std::string> said(kRanks);

    on_ranks(kRanks, [&](const Ranks& ranks) {
      try {
        save_rank(GetParam(),
                  disk,
                  dir.path(),
                  2,
                  held(kModel, ranges, ranks.rank, kRanks, true, kNew),
                  ranks);
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), Error::Kind::Io);
        said[static_cast<std::size_t>(ranks.rank)] = error.text();
      }
    });

    failed = !place.empty();
    EXPECT_EQ(said[0], said[1]);
    if (failed && !hint) {
      EXPECT_NE(said[0].find(place), std::string::npos) << said[0];
      EXPECT_NE(said[0].find("free some space"), std::string::npos);
    } else {
      EXPECT_EQ(said[0], "");
      EXPECT_TRUE(loads_exactly(*newest(dir.path()), kModel, ranges, 1, kNew));
    }
    EXPECT_TRUE(loads_exactly(list(dir.path()).front(), kModel, ranges, 1, kOld));
    for (const auto& entry : fs::directory_iterator(dir.path())) {
      EXPECT_NE(entry.path().filename().string().front(), '.') << entry.path();
    }
  }
}

TEST_P(EverySave, RenamesNothingBeforeItIsSynced) {
  const files::TempDir dir;
  std::set<fs::path> dirty;
  bool folder_dirty = false, renamed = false, root_synced = false;
  WatchedStorage disk([&](const std::string& operation, const fs::path& path) {
    if (operation == "create" || operation == "append") dirty.insert(path);
    if (operation == "sync") dirty.erase(path);
    if (operation == "create" || operation == "remove") folder_dirty = true;
    if (operation == "sync folder" && path.filename().string().starts_with(".tmp"))
      folder_dirty = false;
    if (operation == "rename") {
      renamed = true;
      EXPECT_TRUE(dirty.empty() && !folder_dirty);
    }
    if (operation == "sync folder" && path == dir.path()) root_synced = renamed;
    EXPECT_TRUE(root_synced || operation != "write")
        << "latest must not name what may still vanish";
  });

  save_model(disk, dir.path(), 1, kModel, ranges, kRanks, 0, GetParam());

  EXPECT_TRUE(renamed && root_synced);
}

}  // namespace
}  // namespace tessera::checkpoint::test
