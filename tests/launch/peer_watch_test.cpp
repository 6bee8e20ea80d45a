// SPDX-License-Identifier: Apache-2.0
// labels: fast multiprocess
#include "tessera/launch/peer_watch.h"

#include <csignal>

#include "launch/fake_job.h"
#include "support/no_threads.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera::launch {
namespace {

using testing::HasSubstr;

/// A control page that the test shares with its children.
ControlPage& shared_page(int ranks) {
  void* const memory = mmap(nullptr,
                            ControlPage::bytes(ranks),
                            PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_ANONYMOUS,
                            -1,
                            0);
  return *ControlPage::format(memory, ranks);
}

TEST(PeerWatch, ReportsARankThatWasKilledWhileItBrokeTheWorld) {
  ControlPage& page = shared_page(2);
  const pid_t victim = in_child([&] {
    page.abort_claim = 1;  // the message is never written
    return raise(SIGKILL);
  });
  page.line(1).pid = static_cast<std::uint32_t>(victim);
  ASSERT_EQ(wait_for(victim), 1000 + SIGKILL);

  const pid_t watcher = in_child([&] {
    Options options;
    options.grace_s = 60.0;
    watch_peers(page, 0, options);
    return eventually([&] { return page.aborted != 0; }) ? 42 : 1;
  });

  EXPECT_EQ(wait_for(watcher), 42);
  EXPECT_EQ(page.abort_rank, 1U);
  EXPECT_THAT(page.abort_message(), HasSubstr("rank 1 was lost: its process ended"));
}

TEST(PeerWatch, SaysThatItsThreadCannotBeHadAndLeavesSignalsAsTheyWere) {
  ControlPage& page = shared_page(1);
  const tessera::test::NoMoreThreads none;
  sigset_t before, after;
  pthread_sigmask(SIG_BLOCK, nullptr, &before);

  try {
    watch_peers(page, 0, {});
    ADD_FAILURE() << "a thread was made";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::Environment);
    EXPECT_THAT(error.fix(), HasSubstr("ulimit -u"));
  }

  pthread_sigmask(SIG_BLOCK, nullptr, &after);
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1})
    EXPECT_EQ(sigismember(&after, signal), sigismember(&before, signal));
}

}  // namespace
}  // namespace tessera::launch
