// SPDX-License-Identifier: Apache-2.0
// labels: fast multiprocess
#include <cstring>

#include "launch/fake_job.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "tessera/launch/launch.h"
#include "tessera/launch/meeting.h"

namespace tessera::launch {
namespace {

using testing::HasSubstr;

/// Rank `rank` of `ranks` as a launcher would start it.
Launcher launcher_of(int rank, int ranks, const std::string& job) {
  Launcher launcher;
  launcher.name = "torchrun";
  launcher.rank = launcher.local_rank = rank;
  launcher.world_size = launcher.local_world_size = ranks;
  launcher.job = job + std::to_string(getppid());
  return launcher;
}

Options quick() {
  Options options;
  options.join_timeout_s = 20.0;
  options.grace_s = 0.3;
  return options;
}

/// Keeps the number of lines, the first one's length and who spoke on the board.
Options reporting(Board& board, int rank) {
  Options options = quick();
  options.report = [&board, rank](const std::vector<std::string>& lines, int exit_code) {
    board.numbers[0] = static_cast<int>(lines.size());
    board.numbers[1] = lines[0].find("rank 1 failed at step 7: no data") == 0 ? 1 : 0;
    board.numbers[2] = lines[0].find("rank 0 was lost: ") == 0 ? 1 : 0;
    board.numbers[3] = rank;
    ++board.numbers[4];
    board.numbers[5] = exit_code;
  };
  return options;
}

/// All ranks of a job as children of the test, the last one first so that they have to wait for
/// rank 0.
std::vector<pid_t> start(int ranks,
                         const std::string& job,
                         const std::function<int(const RankInfo&)>& fn,
                         Board* board = nullptr) {
  std::vector<pid_t> children(static_cast<std::size_t>(ranks));
  for (int rank = ranks - 1; rank >= 0; --rank) {
    children[static_cast<std::size_t>(rank)] = in_child([=] {
      try {
        return run_rank(join_launcher(launcher_of(rank, ranks, job),
                                      board == nullptr ? quick() : reporting(*board, rank)),
                        fn);
      } catch (const Error& error) {
        return exit_code(error.kind());
      }
    });
  }
  return children;
}

TEST(JoinLauncher, MeetsAllLocalRanksAndSharesTheirMemory) {
  const auto children = start(3, "meet", [](const RankInfo& info) {
    if (info.arenas.size() != 3 || info.control < 0) return 2;
    std::vector<std::atomic<int>*> words;
    for (const int arena : info.arenas) {
      words.push_back(static_cast<std::atomic<int>*>(
          mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, arena, 0)));
    }
    *words[static_cast<std::size_t>(info.rank)] = 10 + info.rank;
    return eventually([&] { return *words[0] == 10 && *words[1] == 11 && *words[2] == 12; }) ? 0
                                                                                             : 3;
  });

  for (const pid_t child : children)
    EXPECT_EQ(wait_for(child), 0);
}

TEST(JoinLauncher, NeedsNobodyForASingleRank) {
  const auto children = start(1, "single", [](const RankInfo& info) {
    return info.world_size == 1 && info.arenas.empty() && info.control >= 0 ? 0 : 1;
  });

  EXPECT_EQ(wait_for(children[0]), 0);
}

TEST(JoinLauncher, TellsTheOthersWhenARankIsLost) {
  Board& board = Board::make();
  const auto children =
      start(3, "lost", [&](const RankInfo& info) { return step_until_told(info, board); });
  ASSERT_TRUE(
      eventually([&] { return board.steps[0] > 2 && board.steps[1] > 2 && board.steps[2] > 2; }));

  kill(children[1], SIGKILL);

  EXPECT_EQ(wait_for(children[0]), 6);
  EXPECT_EQ(wait_for(children[1]), 1000 + SIGKILL);
  EXPECT_EQ(wait_for(children[2]), 6);
}

TEST(JoinLauncher, EndsRanksThatDoNotLeaveABrokenWorld) {
  Board& board = Board::make();
  const auto children = start(2, "stuck", [&](const RankInfo& info) -> int {
    board.pids[static_cast<std::size_t>(info.rank)] = getpid();
    for (;;)
      pause();
  });
  ASSERT_TRUE(eventually([&] { return board.pids[0] != 0 && board.pids[1] != 0; }));

  kill(children[0], SIGKILL);

  EXPECT_EQ(wait_for(children[1]), 6);
  wait_for(children[0]);
}

TEST(JoinLauncher, ReportsForARankThatDoesNotLeave) {
  for (const bool killed : {true, false}) {
    Board& board = Board::make();
    const auto children = start(
        2,
        killed ? "busy" : "busy2",
        [&](const RankInfo& info) -> int {
          board.pids[static_cast<std::size_t>(info.rank)] = getpid();
          while (info.rank == 0 || killed)
            pause();
          map_control(info.control, 2)->line(1).step = 7;
          throw Error(Error::Kind::Data, "no data", "bring some");
        },
        &board);
    ASSERT_TRUE(eventually([&] { return board.pids[0] != 0 && board.pids[1] != 0; }));

    if (killed) kill(children[1], SIGKILL);

    EXPECT_EQ(wait_for(children[0]), killed ? 6 : 3);
    wait_for(children[1]);
    EXPECT_EQ(board.numbers[0], 2) << "what happened, and a line for the other rank";
    EXPECT_EQ(board.numbers[1], killed ? 0 : 1);
    EXPECT_EQ(board.numbers[3], 0) << "by the first rank that is left";
    EXPECT_EQ(board.numbers[4], 1) << "once";
    EXPECT_EQ(board.numbers[5], killed ? 6 : 3) << "with the job's exit code";
  }
}

TEST(JoinLauncher, LetsRanksFinishAtTheirOwnTime) {
  const auto children = start(2, "finish", [](const RankInfo& info) {
    if (info.rank == 0) return 0;
    nap(0.4);
    return map_control(info.control, 2)->aborted == 0 ? 0 : 6;
  });

  EXPECT_EQ(wait_for(children[0]), 0);
  EXPECT_EQ(wait_for(children[1]), 0);
}

TEST(JoinLauncher, PassesOnWhatARankThrew) {
  Board& board = Board::make();
  const auto children = start(2, "throw", [&](const RankInfo& info) -> int {
    if (info.rank == 1) throw Error(Error::Kind::Data, "no data");
    try {
      return step_until_told(info, board);
    } catch (const Error& error) {
      return std::string(error.what()).find("no data") != std::string::npos ? 42 : 1;
    }
  });

  EXPECT_EQ(wait_for(children[0]), 42);
  EXPECT_EQ(wait_for(children[1]), 3);
}

TEST(JoinLauncher, ReportsOnTheFirstRankThatIsLeft) {
  Board& thrown = Board::make();
  for (const pid_t child : start(
           3,
           "report",
           [&](const RankInfo& info) -> int {
             if (info.rank != 1) return step_until_told(info, thrown);
             map_control(info.control, 3)->line(1).step = 7;
             throw Error(Error::Kind::Data, "no data", "bring some");
           },
           &thrown)) {
    wait_for(child);
  }
  EXPECT_EQ(thrown.numbers[0], 3) << "message with its remedy, and a line for each other rank";
  EXPECT_EQ(thrown.numbers[1], 1);
  EXPECT_EQ(thrown.numbers[3], 0);
  EXPECT_EQ(thrown.numbers[4], 1) << "once";

  Board& killed = Board::make();
  const auto children = start(
      3, "report2", [&](const RankInfo& info) { return step_until_told(info, killed); }, &killed);
  ASSERT_TRUE(eventually(
      [&] { return killed.steps[0] > 2 && killed.steps[1] > 2 && killed.steps[2] > 2; }));
  kill(children[0], SIGKILL);
  for (const pid_t child : children)
    wait_for(child);
  EXPECT_EQ(killed.numbers[2], 1);
  EXPECT_EQ(killed.numbers[3], 1);
  EXPECT_EQ(killed.numbers[4], 1);
}

TEST(JoinLauncher, StopsAllWhenTheLauncherSendsATermination) {
  Board& board = Board::make();
  const auto children =
      start(2, "stop", [&](const RankInfo& info) { return step_until_told(info, board); });
  ASSERT_TRUE(eventually([&] { return board.steps[0] > 2 && board.steps[1] > 2; }));

  kill(children[1], SIGTERM);

  EXPECT_EQ(wait_for(children[0]), 75);
  EXPECT_EQ(wait_for(children[1]), 75);
}

TEST(JoinLauncher, NamesTheRankThatDoesNotCome) {
  Options options = quick();
  options.join_timeout_s = 0.2;
  const auto message = [&](int rank) {
    try {
      join_launcher(launcher_of(rank, 3, "alone"), options);
    } catch (const Error& error) {
      return error.text();
    }
    return std::string("joined");
  };

  EXPECT_THAT(message(0), HasSubstr("local ranks 1, 2 did not arrive"));
  EXPECT_THAT(message(1), HasSubstr("local rank 0 did not arrive"));
}

TEST(JoinLauncher, IsNotDisturbedByStrangers) {
  const std::string job = "strangers";
  const pid_t stranger = in_child([&] {
    Fd fd = connect_to(socket_name(launcher_of(0, 2, job).job), now_s() + 10.0);
    if (fd.get() < 0) return 1;
    const char noise[] = "hello?";
    return send(fd.get(), noise, sizeof(noise), MSG_NOSIGNAL) > 0 ? 0 : 1;
  });
  const pid_t host = in_child([&] {
    return run_rank(join_launcher(launcher_of(0, 2, job), quick()),
                    [](const RankInfo&) { return 0; });
  });
  EXPECT_EQ(wait_for(stranger), 0);
  const pid_t guest = in_child([&] {
    return run_rank(join_launcher(launcher_of(1, 2, job), quick()),
                    [](const RankInfo&) { return 0; });
  });

  EXPECT_EQ(wait_for(guest), 0);
  EXPECT_EQ(wait_for(host), 0);
}

}  // namespace
}  // namespace tessera::launch
