// SPDX-License-Identifier: Apache-2.0
// labels: fast multiprocess
#include <cstring>

#include "launch/fake_job.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "tessera/base/log.h"
#include "tessera/launch/launch.h"
#include "tessera/launch/refusal.h"
#include "tessera/launch/rendezvous.h"

namespace tessera::launch {
namespace {

using testing::HasSubstr;

/// Returns rank `rank` of `ranks` as a launcher would start it.
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

/// Records the number of lines, the length of the first one and the reporting rank on the board.
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

/// Starts all ranks of a job as children of the test, the last one first so that they have to wait
/// for rank 0.
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

TEST(JoinLauncher, NotifiesTheOthersWhenARankIsLost) {
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

TEST(JoinLauncher, ReportsOnAnotherRankWhereTheFirstIsStopped) {
  Board& board = Board::make();
  log::set_sink([&](log::Level, std::string_view text) {
    if (text.find("rank 1 failed at step 7: no data") == 0) ++board.numbers[6];
  });
  const auto children = start(
      3,
      "stopped",
      [&](const RankInfo& info) -> int {
        if (info.rank == 0) return raise(SIGSTOP);
        board.pids[static_cast<std::size_t>(info.rank)] = getpid();
        if (info.rank == 2) return step_until_told(info, board);
        map_control(info.control, 3)->line(1).step = 7;
        throw Error(Error::Kind::Data, "no data", "bring some");
      },
      &board);

  for (const int rank : {1, 2})
    EXPECT_NE(wait_for(children[static_cast<std::size_t>(rank)]), 0);
  EXPECT_EQ(board.numbers[4], 1) << "once";
  EXPECT_EQ(board.numbers[1], 1) << "what happened";
  EXPECT_NE(board.numbers[3], 0) << "not by the one that cannot";
  EXPECT_EQ(board.numbers[6], 1) << "and at once in the log of the rank that failed";
  kill(children[0], SIGKILL);
  wait_for(children[0]);
  log::set_sink({});
}

TEST(JoinLauncher, StopsAllWhenTheLauncherSendsASignal) {
  std::signal(SIGHUP, SIG_DFL);  // regardless of nohup
  for (const int signal : {SIGTERM, SIGHUP, SIGUSR1}) {
    Board& board = Board::make();
    const auto children = start(2, "stop" + std::to_string(signal), [&](const RankInfo& info) {
      return step_until_told(info, board);
    });
    ASSERT_TRUE(eventually([&] { return board.steps[0] > 2 && board.steps[1] > 2; }));

    kill(children[1], signal);

    EXPECT_EQ(wait_for(children[0]), 75) << signal;
    EXPECT_EQ(wait_for(children[1]), 75) << signal;
  }
}

TEST(JoinLauncher, EndsAtOnceOfASecondSignalWithACodeThatIsDocumented) {
  std::signal(SIGHUP, SIG_DFL);
  Board& board = Board::make();
  const auto children = start(1, "twice", [&](const RankInfo& info) -> int {
    board.pids[0] = getpid();
    while (map_control(info.control, 1)->stop_requested == 0)
      nap();
    board.steps[0] = 1;
    for (;;)
      pause();  // ignores the request
  });
  ASSERT_TRUE(eventually([&] { return board.pids[0] != 0; }));

  kill(children[0], SIGHUP);
  ASSERT_TRUE(eventually([&] { return board.steps[0] == 1; }));
  nap(0.6);  // a signal within this time of the first would count as the same request
  kill(children[0], SIGHUP);

  EXPECT_EQ(wait_for(children[0]), 143);
}

TEST(JoinLauncher, EndsRanksThatHaveNothingToSaveAtTheFirstSignal) {
  Board& board = Board::make();
  std::vector<pid_t> children;
  for (int rank = 1; rank >= 0; --rank) {
    children.push_back(in_child([&board, rank] {
      Options options = quick();
      options.stops_at_once = true;
      // It never looks whether it is to stop, as a rank that waits for a message of another host.
      return run_rank(join_launcher(launcher_of(rank, 2, "at once"), options),
                      [&board](const RankInfo& info) -> int {
                        board.pids[static_cast<std::size_t>(info.rank)] = getpid();
                        for (;;)
                          pause();
                      });
    }));
  }
  ASSERT_TRUE(eventually([&] { return board.pids[0] != 0 && board.pids[1] != 0; }));
  const double begin = now_s();

  kill(children[0], SIGTERM);

  EXPECT_EQ(wait_for(children[0]), 143);
  EXPECT_EQ(wait_for(children[1]), 143);
  EXPECT_LT(now_s() - begin, 2.0);
}

TEST(JoinLauncher, HeedsNoHangupUnderNohup) {
  Board& board = Board::make();
  std::signal(SIGHUP, SIG_IGN);
  const auto children =
      start(1, "nohup", [&](const RankInfo& info) { return step_until_told(info, board); });
  std::signal(SIGHUP, SIG_DFL);
  ASSERT_TRUE(eventually([&] { return board.steps[0] > 2; }));

  kill(children[0], SIGHUP);
  const int before = board.steps[0];

  EXPECT_TRUE(eventually([&] { return board.steps[0] > before + 5; }));
  kill(children[0], SIGTERM);
  EXPECT_EQ(wait_for(children[0]), 75);
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

/// Returns the result of a meeting as an exit code: 0 if all have met, 40 for an error of this kind
/// whose text contains `words`.
int meet(int rank,
         int ranks,
         const std::string& job,
         const Options& options,
         Error::Kind kind,
         const std::string& words) {
  try {
    join_launcher(launcher_of(rank, ranks, job), options);
  } catch (const Error& error) {
    return error.kind() == kind && error.text().find(words) != std::string::npos ? 40 : 1;
  }
  return 0;
}

TEST(JoinLauncher, RefusesRanksThatWereAskedSomethingElse) {
  std::vector<pid_t> children;
  for (int rank = 0; rank < 2; ++rank) {
    children.push_back(in_child([&] {
      Options options = quick();
      options.asked = rank == 0 ? 4711 : 4712;
      return meet(rank,
                  2,
                  "asked",
                  options,
                  Error::Kind::Config,
                  "rank 1 was started with another configuration than rank 0\n"
                  "  fix: give every rank the same file and flags");
    }));
  }

  EXPECT_EQ(wait_for(children[0]), 40);
  EXPECT_EQ(wait_for(children[1]), 40) << "it is reported too";
}

/// Arrives as local rank `rank` of `ranks` and sends nothing more.
Connection arrive(int rank, int ranks, const std::string& job) {
  Connection host(connect_to(socket_name(job), now_s() + 20.0));
  Hello hello;
  hello.rank = rank;
  hello.world_size = hello.world = ranks;
  host.send(&hello, sizeof(hello));
  return host;
}

TEST(JoinLauncher, NamesARankThatEndsWhileTheyMeet) {
  const std::string job =
      launcher_of(0, 4, "ended").job;  // a job of a child process would have another name
  Board& board = Board::make();
  const pid_t host = in_child([&] {
    Launcher launcher = launcher_of(0, 4, "ended");
    launcher.job = job;
    while (board.pids[0] == 0)
      nap();
    const std::string words = "local rank 1 (process " + std::to_string(board.pids[0]) + ") ended";
    try {
      join_launcher(launcher, quick());
    } catch (const Error& error) {
      return error.text().find(words) == 0 ? exit_code(error.kind()) : 1;
    }
    return 0;
  });
  const pid_t mortal = in_child([&] {
    board.pids[0] = getpid();
    while (board.steps[0] == 0)
      nap();
    arrive(1, 4, job);
    return 0;
  });
  Connection waiting = arrive(2, 4, job);
  board.steps[0] = 1;

  EXPECT_EQ(wait_for(host), 6);
  wait_for(mortal);
  Welcome words;
  ASSERT_TRUE(waiting.receive(&words, sizeof(words), now_s() + 20.0));
  EXPECT_EQ(words.refused, static_cast<std::uint32_t>(Error::Kind::Comm) + 1);
  std::string what(words.what_bytes + words.fix_bytes, '\0');
  ASSERT_TRUE(waiting.receive(what.data(), what.size(), now_s() + 20.0));
  EXPECT_THAT(what, HasSubstr("local rank 1 (process " + std::to_string(mortal) + ") ended"));
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

/// Lets local ranks of three end with an error, each in a process of its own, and returns those
/// that tell it.
std::vector<int> tellers(const std::vector<int>& ranks,
                         const std::string& job,
                         const std::function<std::string(int rank)>& error) {
  Board& board = Board::make();
  std::vector<pid_t> children;
  for (const int rank : ranks) {
    children.push_back(in_child([&] {
      const Refusal refusal(launcher_of(rank, 3, job), error(rank), 0.5);
      board.numbers[static_cast<std::size_t>(rank)] = refusal.is_told_here() ? 1 : 0;
      return 2;
    }));
  }
  for (const pid_t child : children)
    EXPECT_EQ(wait_for(child), 2);
  std::vector<int> out;
  for (const int rank : ranks) {
    if (board.numbers[static_cast<std::size_t>(rank)] == 1) out.push_back(rank);
  }
  return out;
}

TEST(Refusal, OfAllRanksIsReportedByTheLowestLocalRank) {
  const auto same = [](int) { return std::string("no data"); };

  EXPECT_THAT(tellers({2, 1, 0}, "all", same), testing::ElementsAre(0));
}

TEST(Refusal, ThatTheLowestRankDoesNotHaveIsReportedByAnother) {
  const auto same = [](int) { return std::string("no data"); };

  EXPECT_THAT(tellers({1, 2}, "some", same), testing::SizeIs(1));
}

TEST(Refusal, OfAnotherKindIsReportedAsWell) {
  const auto own = [](int rank) { return rank == 2 ? "no memory" : "no data"; };

  EXPECT_THAT(tellers({0, 1, 2}, "different", own), testing::ElementsAre(0, 2));
}

}  // namespace
}  // namespace tessera::launch
