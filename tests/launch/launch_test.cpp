// SPDX-License-Identifier: Apache-2.0
// labels: fast multiprocess
#include "tessera/launch/launch.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <stdexcept>

#include "launch/fake_job.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera::launch {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

/// Returns options that store the report in `lines`.
Options options_of(int ranks, std::vector<std::string>* lines = nullptr) {
  Options options;
  options.ranks = ranks;
  options.messages.again = "start it again from its checkpoint";
  options.messages.unsaved = "steps are lost";
  if (lines != nullptr) options.report = [lines](const auto& report, int) { *lines = report; };
  return options;
}

TEST(Launch, GivesEveryRankItsIdentity) {
  Board& board = Board::make();

  const int code = launch(options_of(3), [&](const RankInfo& info) {
    const bool right = info.world_size == 3 && info.local_rank == info.rank &&
                       info.local_world_size == 3 && info.arenas.size() == 3 &&
                       info.arena_bytes > 0 && info.control >= 0 && info.threads >= 1;
    board.numbers[static_cast<std::size_t>(info.rank)] = right ? 1 + info.rank : -1;
    board.pids[static_cast<std::size_t>(info.rank)] = getpid();
    return 0;
  });

  EXPECT_EQ(code, 0);
  EXPECT_EQ(board.numbers[0], 1);
  EXPECT_EQ(board.numbers[1], 2);
  EXPECT_EQ(board.numbers[2], 3);
  EXPECT_EQ((std::set<int>{board.pids[0], board.pids[1], board.pids[2], getpid()}.size()), 4U);
}

TEST(Launch, ForksASingleRankToo) {
  Board& board = Board::make();

  const int code = launch(options_of(1), [&](const RankInfo& info) {
    board.pids[0] = getpid();
    return info.arenas.empty() && info.cores.empty() ? 0 : 1;
  });

  EXPECT_EQ(code, 0);
  EXPECT_NE(board.pids[0], getpid());
}

TEST(Launch, GivesArenasThatAllRanksSee) {
  const int code = launch(options_of(2), [](const RankInfo& info) {
    const std::size_t bytes = 4096;
    auto* const mine =
        static_cast<std::atomic<int>*>(mmap(nullptr,
                                            bytes,
                                            PROT_READ | PROT_WRITE,
                                            MAP_SHARED,
                                            info.arenas[static_cast<std::size_t>(info.rank)],
                                            0));
    auto* const other =
        static_cast<std::atomic<int>*>(mmap(nullptr,
                                            bytes,
                                            PROT_READ | PROT_WRITE,
                                            MAP_SHARED,
                                            info.arenas[static_cast<std::size_t>(1 - info.rank)],
                                            0));
    *mine = 7 + info.rank;
    return eventually([&] { return *other == 8 - info.rank; }) ? 0 : 1;
  });

  EXPECT_EQ(code, 0);
}

TEST(Launch, ReturnsTheCodeOfTheRankThatFailed) {
  const auto with = [](int code) {
    return launch(options_of(2),
                  [code](const RankInfo& info) { return info.rank == 1 ? code : 0; });
  };

  EXPECT_EQ(with(kExitIncomplete), 9);
  EXPECT_EQ(with(3), 3);
  EXPECT_EQ(with(70), 70);
  EXPECT_EQ(with(1), 70) << "a library's own";
  EXPECT_EQ(with(42), 70);
}

TEST(Launch, RefusesAbsurdNumbersOfRanks) {
  for (const int ranks : {0, -3, 1025}) {
    try {
      launch(options_of(ranks), [](const RankInfo&) { return 0; });
      FAIL() << ranks;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Error::Kind::Config);
      EXPECT_THAT(error.text(), HasSubstr(std::to_string(ranks)));
    }
  }
}

TEST(Launch, StartsManyRanks) {
  EXPECT_EQ(launch(options_of(64), [](const RankInfo&) { return 0; }), 0);
}

TEST(LaunchErrors, AreReportedInTheWordsOfTheRankThatThrew) {
  Board& board = Board::make();
  std::vector<std::string> lines;

  const int code = launch(options_of(3, &lines), [&](const RankInfo& info) -> int {
    if (info.rank != 1) return step_until_told(info, board);
    map_control(info.control, 3)->line(1).step = 4;
    throw Error(Error::Kind::Numeric, "the loss is nan", "lower the learning rate");
  });

  EXPECT_EQ(code, 7);
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_EQ(lines[0], "rank 1 failed at step 4: the loss is nan\n  fix: lower the learning rate");
  EXPECT_THAT(lines[1], StartsWith("rank 0: exited with code 6, at step "));
  EXPECT_THAT(lines[2], StartsWith("rank 2: exited with code 6, at step "));
}

TEST(LaunchErrors, OfOtherTypesAreOurBugs) {
  std::vector<std::string> lines;

  const int code = launch(options_of(1, &lines),
                          [](const RankInfo&) -> int { throw std::out_of_range("seven"); });

  EXPECT_EQ(code, 70);
  ASSERT_FALSE(lines.empty());
  EXPECT_THAT(lines[0], HasSubstr("seven"));
}

TEST(LaunchErrors, DoNotLeaveRanksThatIgnoreThem) {
  Board& board = Board::make();
  std::vector<std::string> lines;
  Options options = options_of(2, &lines);
  options.grace_s = 0.1;

  const int code = launch(options, [&](const RankInfo& info) {
    board.pids[static_cast<std::size_t>(info.rank)] = getpid();
    while (info.rank == 0)
      pause();
    return 3;
  });

  EXPECT_EQ(code, 3);
  EXPECT_TRUE(is_gone(board.pids[0]));
  EXPECT_THAT(lines.back(), StartsWith("rank 0: killed because it did not exit within 0.1 s"));
}

class LaunchLoss : public testing::TestWithParam<int> {};

TEST_P(LaunchLoss, OfAnyRankEndsTheJobAtOnceAndIsNamed) {
  Board& board = Board::make();
  std::vector<std::string> lines;
  const int victim = GetParam();

  const double begin = now_s();
  const int code = launch(options_of(3, &lines), [&](const RankInfo& info) {
    if (info.rank == victim) {
      board.pids[static_cast<std::size_t>(victim)] = getpid();
      map_control(info.control, 3)->line(victim).step = 12;
      kill(getpid(), SIGKILL);
    }
    return step_until_told(info, board);
  });

  EXPECT_EQ(code, 6);
  EXPECT_LT(now_s() - begin, 10.0) << "2 s promised, five times that for a machine under load";
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_THAT(lines[0],
              AllOf(StartsWith("rank " + std::to_string(victim) +
                               " was lost: signal 9 (SIGKILL) at step 12; "),
                    HasSubstr("start it again from its checkpoint")));
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_TRUE(board.pids[static_cast<std::size_t>(rank)] == 0 ||
                is_gone(board.pids[static_cast<std::size_t>(rank)]));
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, LaunchLoss, testing::Values(0, 1, 2));

TEST(LaunchLossCause, IsReportedForOtherSignalsToo) {
  std::vector<std::string> lines;

  const int code = launch(options_of(1, &lines), [](const RankInfo&) {
    std::signal(SIGSEGV, SIG_DFL);
    return raise(SIGSEGV);
  });

  EXPECT_EQ(code, 6);
  EXPECT_THAT(lines[0], AllOf(HasSubstr("signal 11 (SIGSEGV)"), HasSubstr("bug")));
}

/// Runs a supervisor in a separate process, so that the test can send it signals.
pid_t supervise(Board& board, int ranks, const std::function<int(const RankInfo&)>& fn) {
  return in_child([&board, ranks, fn] {
    Options options = options_of(ranks);
    options.report = [&board](const auto& lines, int) {
      board.numbers[7] = static_cast<int>(lines.size());
    };
    options.notice = [&board](const std::string&) { ++board.numbers[6]; };
    return launch(options, fn);
  });
}
bool all_step(Board& board, int ranks) {
  return eventually([&] {
    for (int rank = 0; rank < ranks; ++rank) {
      if (board.steps[static_cast<std::size_t>(rank)] < 2) return false;
    }
    return true;
  });
}
bool all_gone(Board& board, int ranks) {
  return eventually([&] {
    for (int rank = 0; rank < ranks; ++rank) {
      if (!is_gone(board.pids[static_cast<std::size_t>(rank)])) return false;
    }
    return true;
  });
}

TEST(LaunchSupervisor, TakesItsRanksWithIt) {
  Board& board = Board::make();
  const pid_t supervisor =
      supervise(board, 2, [&](const RankInfo& info) { return step_until_told(info, board); });
  ASSERT_TRUE(all_step(board, 2));

  kill(supervisor, SIGKILL);

  EXPECT_EQ(wait_for(supervisor), 1000 + SIGKILL);
  EXPECT_TRUE(all_gone(board, 2));
}

TEST(LaunchStop, LetsRanksFinishTheirStepAndSay) {
  for (const auto& [signal, code] :
       {std::pair{SIGTERM, 75}, {SIGINT, 130}, {SIGHUP, 75}, {SIGUSR1, 75}}) {
    Board& board = Board::make();
    const pid_t supervisor =
        supervise(board, 2, [&](const RankInfo& info) { return step_until_told(info, board); });
    ASSERT_TRUE(all_step(board, 2));

    kill(supervisor, signal);

    EXPECT_EQ(wait_for(supervisor), code);
    EXPECT_EQ(board.numbers[6], 1) << "said once that it stops after the step";
    EXPECT_EQ(board.numbers[7], 0) << "nothing failed, nothing is reported";
  }
}

TEST(LaunchStop, OfOneRankStopsAll) {
  for (const int signal : {SIGTERM, SIGUSR1}) {
    Board& board = Board::make();
    const pid_t supervisor =
        supervise(board, 2, [&](const RankInfo& info) { return step_until_told(info, board); });
    ASSERT_TRUE(all_step(board, 2));

    kill(board.pids[1], signal);

    EXPECT_EQ(wait_for(supervisor), 75);
  }
}

TEST(LaunchStop, LeavesRanksAloneWithCtrlC) {
  Board& board = Board::make();
  const pid_t supervisor =
      supervise(board, 2, [&](const RankInfo& info) { return step_until_told(info, board); });
  ASSERT_TRUE(all_step(board, 2));

  kill(board.pids[0], SIGINT);  // as a terminal does for the whole process group
  const int before = board.steps[0];

  EXPECT_TRUE(eventually([&] { return board.steps[0] > before + 5; }));
  kill(supervisor, SIGTERM);
  EXPECT_EQ(wait_for(supervisor), 75);
}

TEST(LaunchStop, ASecondTimeIsAtOnce) {
  for (const auto& [signal, code] : {std::pair{SIGTERM, 143}, {SIGINT, 130}}) {
    Board& board = Board::make();
    const pid_t supervisor = supervise(board, 2, [&](const RankInfo& info) -> int {
      board.pids[static_cast<std::size_t>(info.rank)] = getpid();
      map_control(info.control, 2)->line(info.rank).step = 3;
      board.steps[static_cast<std::size_t>(info.rank)] = 3;
      for (;;)
        pause();  // ignores the request
    });
    ASSERT_TRUE(all_step(board, 2));

    kill(supervisor, signal);
    kill(supervisor, signal);  // timeout(1) does that: still the first
    ASSERT_TRUE(eventually([&] { return board.numbers[6] == 1; }));
    nap(0.2);
    ASSERT_FALSE(is_gone(supervisor));
    kill(supervisor, signal);

    EXPECT_EQ(wait_for(supervisor), code);
    EXPECT_EQ(board.numbers[7], 3) << "one line of its own and one a rank";
    EXPECT_TRUE(all_gone(board, 2));
  }
}

TEST(LaunchStop, BeforeTheFirstStepHasNothingToSave) {
  Board& board = Board::make();
  const pid_t supervisor = supervise(board, 2, [&](const RankInfo& info) -> int {
    board.pids[static_cast<std::size_t>(info.rank)] = getpid();
    for (;;)
      pause();
  });
  ASSERT_TRUE(eventually([&] { return board.pids[0] != 0 && board.pids[1] != 0; }));

  kill(supervisor, SIGTERM);

  EXPECT_EQ(wait_for(supervisor), 143);
  EXPECT_TRUE(all_gone(board, 2));
}

TEST(LaunchStop, SpeaksOfWhatIsNotSavedOnlyWhereTheJobSaves) {
  for (const bool saves : {true, false}) {
    Board& board = Board::make();
    const pid_t supervisor = in_child([&] {
      Options options;
      options.ranks = 1;
      if (saves) options.messages.unsaved = "steps are lost";
      options.report = [&](const auto& lines, int) {
        board.numbers[0] = lines[0] == "stopped at once by signal 15 (SIGTERM)" ? 1 : 2;
        board.numbers[1] = lines[0].ends_with("): no step had begun, there was nothing to save");
      };
      return launch(options, [&](const RankInfo&) -> int {
        board.pids[0] = getpid();
        for (;;)
          pause();
      });
    });
    ASSERT_TRUE(eventually([&] { return board.pids[0] != 0; }));

    kill(supervisor, SIGTERM);

    EXPECT_EQ(wait_for(supervisor), 143);
    EXPECT_EQ(board.numbers[0], saves ? 2 : 1);
    EXPECT_EQ(board.numbers[1], saves ? 1 : 0);
  }
}

TEST(LaunchSurroundings, MayIgnoreSigchldAndHangups) {
  Board& board = Board::make();
  const pid_t supervisor = in_child([&] {
    std::signal(SIGCHLD, SIG_IGN);
    std::signal(SIGHUP, SIG_IGN);
    return launch(options_of(2),
                  [&](const RankInfo& info) { return step_until_told(info, board); });
  });
  ASSERT_TRUE(all_step(board, 2));

  kill(supervisor, SIGHUP);
  const int before = board.steps[0];
  EXPECT_TRUE(eventually([&] { return board.steps[0] > before + 5; })) << "nohup";
  kill(supervisor, SIGTERM);

  EXPECT_EQ(wait_for(supervisor), 75);
}

TEST(LaunchSurroundings, NeedNoStandardStreams) {
  const pid_t supervisor = in_child([&] {
    for (const int fd : {0, 1, 2})
      close(fd);
    return launch(options_of(2), [](const RankInfo&) { return 0; });
  });

  EXPECT_EQ(wait_for(supervisor), 0);
}

TEST(LaunchSurroundings, AreLeftAsTheyWere) {
  const auto descriptors = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
  };
  // Names of shared memory have the number of the process that made them; other programs make some
  // too.
  const auto shared_memory = [] {
    if (!std::filesystem::exists("/dev/shm")) return std::ptrdiff_t{0};
    return std::count_if(std::filesystem::directory_iterator("/dev/shm"),
                         std::filesystem::directory_iterator(),
                         [](const auto& entry) {
                           return entry.path().filename().string().find(std::to_string(getpid())) !=
                                  std::string::npos;
                         });
  };
  const auto fds = descriptors();
  const auto files = shared_memory();
  sigset_t mask_before, mask_after;
  sigprocmask(SIG_BLOCK, nullptr, &mask_before);

  launch(options_of(2), [](const RankInfo& info) { return info.rank; });

  EXPECT_EQ(descriptors(), fds);
  EXPECT_EQ(shared_memory(), files);
  sigprocmask(SIG_BLOCK, nullptr, &mask_after);
  EXPECT_EQ(sigismember(&mask_after, SIGINT), sigismember(&mask_before, SIGINT));
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1) << "no child is left, dead or alive";
}

}  // namespace
}  // namespace tessera::launch
