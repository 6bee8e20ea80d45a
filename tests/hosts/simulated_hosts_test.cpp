// SPDX-License-Identifier: Apache-2.0
// labels: slow
// Thousands of hosts meet, are lost and come back, in virtual time: the protocols of the launcher
// on a simulated network.
#include "tessera/hosts/simulated_hosts.h"

#include <cmath>
#include <csignal>
#include <set>
#include <string>
#include <vector>

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera::hosts {
namespace {

using testing::HasSubstr;

constexpr int kHosts = 4096;
// Messages of a host while the hosts meet: its facts, what it reaches, and a few signs of life.
double most_messages(int hosts) {
  return 4.0 + std::log2(hosts);
}

struct Meeting {
  SimulatedNetwork network;
  SimulatedJob job;
  Timeline timeline;
  std::optional<SimulatedHosts> hosts;

  explicit Meeting(int number, double loss = 0.001) {
    network.loss = loss;
    job.hosts = number;
  }
  /// Returns whether all have arrived by that time.
  bool meet(double limit, const std::set<int>& dead = {}) {
    hosts.emplace(job, network, timeline, dead);
    return timeline.run_until(limit, [&] { return hosts->num_ready() == job.hosts; });
  }
};

TEST(SimulatedHosts, FourThousandMeetWithinTwoSeconds) {
  Meeting meeting(kHosts);

  ASSERT_TRUE(meeting.meet(30.0));

  EXPECT_LT(meeting.timeline.now(), 2.0) << "virtual seconds from the start of the first agent";
  EXPECT_TRUE(meeting.hosts->coordinator().ready());
  const HostTraffic most = meeting.hosts->largest_traffic();
  EXPECT_LE(static_cast<double>(most.sent), most_messages(kHosts));
  EXPECT_LE(static_cast<double>(most.received), most_messages(kHosts));
  EXPECT_LT(most.received_bytes, 4096) << "log2(n) addresses, and no table of all hosts";
}

TEST(SimulatedHosts, TheWorkOfAMeetingGrowsWithTheHostsAndNotWithTheirSquare) {
  std::vector<double> events;
  for (const int hosts : {512, kHosts}) {
    Meeting meeting(hosts);
    ASSERT_TRUE(meeting.meet(30.0));
    events.push_back(static_cast<double>(meeting.timeline.num_events()) / hosts);
  }

  EXPECT_LE(events[1], events[0] * std::log2(kHosts) / std::log2(512)) << "events for each host";
}

TEST(SimulatedHosts, MessagesOfAHostGrowWithTheLogarithmOfTheHosts) {
  std::vector<HostTraffic> traffic;
  for (const int hosts : {64, 512, kHosts}) {
    Meeting meeting(hosts);
    ASSERT_TRUE(meeting.meet(30.0));
    const double began = meeting.timeline.now();
    // Every rank changes its line all the time, and waits for its neighbour.
    for (int second = 0; second < 4; ++second) {
      for (int rank = 0; rank < hosts; ++rank)
        meeting.hosts->set_line(rank, second, (rank + 1) % hosts);
      meeting.timeline.run_until(began + second + 1);
    }
    traffic.push_back(meeting.hosts->largest_traffic());
    for (const int host : {0, hosts / 2})
      EXPECT_LE(meeting.hosts->num_seen(host), 10U);
  }
  // Below 80 hosts lines are shared more often than each second.
  EXPECT_LE(traffic[2].received - traffic[1].received, 4);
  EXPECT_LE(traffic[2].sent - traffic[1].sent, 4);
  EXPECT_LE(traffic[2].received_bytes, traffic[1].received_bytes + 1024);
}

TEST(SimulatedHosts, AHostSeesWhomItsRanksWaitForAndWhoIsAtTheEndOfTheChain) {
  Meeting meeting(100);
  ASSERT_TRUE(meeting.meet(10.0));

  // 0 waits for 1, 1 for 2, ..., 49 for 50, which computes; 77 waits for 0.
  for (int rank = 0; rank < 50; ++rank)
    meeting.hosts->set_line(rank, 7, rank + 1);
  meeting.hosts->set_line(50, 6);
  meeting.hosts->set_line(77, 7, 0);
  meeting.timeline.run_until(meeting.timeline.now() + 4.0);

  EXPECT_EQ(meeting.hosts->seen_step(0, 1), 7);
  EXPECT_EQ(meeting.hosts->seen_step(0, 50), 6);
  EXPECT_EQ(meeting.hosts->seen_step(0, 77), 7) << "it waits for a rank of this host";
  EXPECT_EQ(meeting.hosts->seen_step(0, 30), std::nullopt);
  EXPECT_EQ(meeting.hosts->seen_step(90, 50), std::nullopt) << "nobody there waits";
}

TEST(SimulatedHosts, FewHostsSeeAllLines) {
  Meeting meeting(4);
  ASSERT_TRUE(meeting.meet(10.0));

  meeting.hosts->set_line(3, 12);
  meeting.timeline.run_until(meeting.timeline.now() + 2.0);

  EXPECT_EQ(meeting.hosts->seen_step(0, 3), 12);
  EXPECT_EQ(meeting.hosts->seen_step(1, 3), 12);
}

TEST(SimulatedHosts, ALostHostIsNamedOnAllOthersAndItsHeadShowsAllLines) {
  Meeting meeting(kHosts);
  ASSERT_TRUE(meeting.meet(30.0));
  for (int rank = 0; rank < kHosts; ++rank)
    meeting.hosts->set_line(rank, 3);
  meeting.timeline.run_until(meeting.timeline.now() + 3.0);
  const double lost_at = meeting.timeline.now();

  meeting.hosts->lose(1234, /*ends_connection=*/true);
  ASSERT_TRUE(meeting.timeline.run_until(
      lost_at + 30.0, [&] { return meeting.hosts->num_broken() == kHosts - 1; }));

  EXPECT_LT(meeting.timeline.now() - lost_at, 2.0);
  EXPECT_THAT(meeting.hosts->end_of(77), HasSubstr("host node-1234 was lost (ranks 1234 to 1234)"));
  EXPECT_EQ(meeting.hosts->coordinator().lost_hosts(), std::vector<int>{1234});
  EXPECT_EQ(meeting.hosts->num_seen(0), static_cast<std::size_t>(kHosts) - 1)
      << "the host that reports the failure shows where all ranks were";
  EXPECT_LE(meeting.hosts->num_seen(77), 4U);
}

TEST(SimulatedHosts, AHostWithoutPowerIsLostAfterItsSilence) {
  Meeting meeting(256);
  ASSERT_TRUE(meeting.meet(30.0));
  const double lost_at = meeting.timeline.now();

  meeting.hosts->lose(9);
  ASSERT_TRUE(meeting.timeline.run_until(lost_at + 30.0,
                                         [&] { return meeting.hosts->num_broken() == 255; }));

  EXPECT_THAT(meeting.hosts->end_of(0), HasSubstr("host node-9 was lost"));
  EXPECT_GT(meeting.timeline.now() - lost_at, 6.0);
  EXPECT_LT(meeting.timeline.now() - lost_at, 10.0);
}

TEST(SimulatedHosts, AShortInterruptionLosesNobody) {
  Meeting meeting(256);
  ASSERT_TRUE(meeting.meet(30.0));

  meeting.hosts->cut_off(9, 5.0);
  meeting.timeline.run_until(meeting.timeline.now() + 20.0);

  EXPECT_EQ(meeting.hosts->num_broken(), 0);
  EXPECT_TRUE(meeting.hosts->coordinator().lost_hosts().empty());
}

TEST(SimulatedHosts, HostsThatDoNotArriveAreNamed) {
  Meeting meeting(512);
  meeting.job.join_timeout_s = 5.0;

  EXPECT_FALSE(meeting.meet(20.0, {3, 4, 400}));

  const std::optional<HostProblem> refusal = meeting.hosts->coordinator().news().refusal;
  ASSERT_TRUE(refusal);
  EXPECT_THAT(refusal->what, HasSubstr("node-400"));
  EXPECT_THAT(meeting.hosts->end_of(0), HasSubstr("did not arrive within 5 s"));
}

TEST(SimulatedHosts, LossesDelayAMeetingAndDoNotPreventIt) {
  Meeting meeting(1024, /*loss=*/0.1);

  EXPECT_TRUE(meeting.meet(30.0));

  EXPECT_GT(meeting.timeline.now(), 0.6) << "messages were sent again";
}

TEST(SimulatedHosts, TheSameSeedGivesTheSameTime) {
  Meeting one(300), other(300), third(300);
  third.network.seed = 2;
  ASSERT_TRUE(one.meet(30.0) && other.meet(30.0) && third.meet(30.0));

  EXPECT_EQ(one.timeline.now(), other.timeline.now());
  EXPECT_NE(one.timeline.now(), third.timeline.now());
}

/// An elastic job on `hosts` hosts of one rank each.
struct ElasticRun {
  Timeline timeline;
  SimulatedElasticWorld world;
  RemoteOptions options;
  ElasticOptions elastic;
  std::vector<std::string> notices;

  explicit ElasticRun(int hosts) : world({}, timeline) {
    for (int i = 0; i < hosts; ++i)
      options.pool.push_back({fmt::format("node-{}", i), {0}});
    options.notice = [this](const std::string& text) { notices.push_back(text); };
    elastic.min_hosts = hosts / 2;
    elastic.restarts = 10;
    elastic.words = [](int) { return std::vector<std::string>{}; };
  }
};

TEST(SimulatedElasticJob, GoesOnWithoutLostHostsAndTakesThemBack) {
  ElasticRun run(kHosts);
  run.world.lose("node-17", 3.0, 14.0);
  run.world.lose("node-4000", 3.0, 14.0);
  run.world.train_until(30.0);

  const HostsEnd end = run_elastic(run.options, run.elastic, run.world);

  EXPECT_EQ(end.code, kExitOk) << (end.error ? end.error->what : "");
  const auto& starts = run.world.starts();
  ASSERT_GE(starts.size(), 3U);
  EXPECT_EQ(starts.front().hosts, static_cast<std::size_t>(kHosts));
  EXPECT_EQ(starts[1].hosts, static_cast<std::size_t>(kHosts) - 2);
  EXPECT_EQ(starts.back().hosts, static_cast<std::size_t>(kHosts)) << "both came back";
  for (const auto& start : starts)
    EXPECT_LT(start.ready - start.began, 2.0) << "seconds until the hosts have met";
  // The silence after which a host counts as lost, and the next meeting.
  EXPECT_LT(starts[1].ready - 3.0, 12.0);
}

TEST(SimulatedElasticJob, GivesUpIfTooFewHostsAreLeft) {
  ElasticRun run(8);
  run.elastic.min_hosts = 7;
  run.elastic.patience_s = 30.0;
  for (const char* const host : {"node-1", "node-2", "node-3"})
    run.world.lose(host, 10.0, 1e6);

  const HostsEnd end = run_elastic(run.options, run.elastic, run.world);

  EXPECT_NE(end.code, kExitOk);
  ASSERT_TRUE(end.error);
  EXPECT_THAT(end.error->what, HasSubstr("5 of 8 hosts are left, and at least 7 are needed"));
}

}  // namespace
}  // namespace tessera::hosts
