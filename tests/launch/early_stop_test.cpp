// SPDX-License-Identifier: Apache-2.0
// labels: fast multiprocess
#include "tessera/launch/early_stop.h"

#include <csignal>
#include <optional>

#include "launch/fake_job.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "tessera/launch/launch.h"

namespace tessera::launch {
namespace {

using testing::AllOf;
using testing::HasSubstr;

bool blocks(int signal) {
  sigset_t now;
  pthread_sigmask(SIG_BLOCK, nullptr, &now);
  return sigismember(&now, signal) == 1;
}

// Returns what check() throws after these signals.
std::optional<Stopped> stopped_by(std::initializer_list<int> signals) {
  const EarlyStop early;
  for (const int signal : signals)
    kill(getpid(), signal);
  try {
    early.check();
  } catch (const Stopped& stopped) {
    return stopped;
  }
  return std::nullopt;
}

TEST(EarlyStop, IsSilentUntilASignalComes) {
  EXPECT_FALSE(stopped_by({}));
}

TEST(EarlyStop, ReportsTheSignalInWordsAndAsAnExitCode) {
  std::signal(SIGHUP, SIG_DFL);  // regardless of nohup

  EXPECT_EQ(stopped_by({SIGTERM})->exit_code(), kExitTerminated);
  EXPECT_EQ(stopped_by({SIGHUP})->exit_code(), kExitTerminated);
  EXPECT_EQ(stopped_by({SIGUSR1})->exit_code(), kExitTerminated);
  EXPECT_EQ(stopped_by({SIGINT})->exit_code(), kExitInterrupted);
  EXPECT_THAT(stopped_by({SIGTERM})->what(),
              AllOf(HasSubstr("signal 15 (SIGTERM)"), HasSubstr("nothing to save")));
}

TEST(EarlyStop, SurvivesASecondSignal) {
  EXPECT_TRUE(stopped_by({SIGTERM, SIGINT, SIGHUP}));  // the test process has survived
}

TEST(EarlyStop, LeavesTheMaskAsItWas) {
  {
    const EarlyStop early;
    EXPECT_TRUE(blocks(SIGTERM) && blocks(SIGINT));
  }
  EXPECT_FALSE(blocks(SIGTERM) || blocks(SIGINT));
}

TEST(EarlyStop, LeavesToLaunchWhatNobodyCheckedFor) {
  const EarlyStop early;
  kill(getpid(), SIGTERM);
  std::vector<std::string> lines;
  Options options;
  options.ranks = 2;
  options.report = [&](const auto& report, int) { lines = report; };

  const int code = launch(options, [](const RankInfo&) {
    pause();
    return 0;
  });

  EXPECT_EQ(code, kExitTerminated);
  ASSERT_FALSE(lines.empty());
  EXPECT_EQ(lines[0], "stopped at once by signal 15 (SIGTERM)");
}

TEST(EarlyStop, DoesNotReachTheRanks) {
  const EarlyStop early;
  Options options;
  options.ranks = 2;

  EXPECT_EQ(launch(options,
                   [](const RankInfo&) {
                     return blocks(SIGTERM) || blocks(SIGINT) || blocks(SIGHUP) ? 1 : 0;
                   }),
            0);
}

}  // namespace
}  // namespace tessera::launch
