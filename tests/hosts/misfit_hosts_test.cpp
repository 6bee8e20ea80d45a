// SPDX-License-Identifier: Apache-2.0
// labels: slow
// Hosts that do not belong to a job, or that come late: what both sides are told.
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "hosts/coordinator_support.h"
#include "launch/fake_job.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tessera/base/clock.h"
#include "tessera/base/error.h"
#include "tessera/hosts/agent_job.h"
#include "tessera/hosts/coordinator_connections.h"

namespace tessera::hosts {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;

class MisfitHosts : public HeadOfHosts {};

// The files that hosts compare may take longer to read than hosts have to arrive.
TEST_F(MisfitHosts, WaitsForAHostThatShowsThatItReads) {
  start(2, /*join_timeout_s=*/0.5, /*silence_s=*/8.0);
  const FactsOfHost slow = [](const std::function<void()>& alive) {
    for (int i = 0; i < 6; ++i) {
      launch::nap(0.25);
      alive();
    }
    return kSame({});
  };
  std::string other_end = "accepted";
  std::jthread other([&] {
    try {
      const CoordinatorClient mirror(part(1, 1, 1), slow, 5.0);
    } catch (const Error& error) {
      other_end = error.text();
    }
  });
  const CoordinatorClient mirror(part(0, 0, 1), kSame, 5.0);
  other.join();

  EXPECT_EQ(other_end, "accepted");
  EXPECT_THAT(notices(), Contains(HasSubstr("waiting for node-1, which reads")));
}

/// A host that was started in another way than the coordinator of its job.
struct Misfit {
  std::string claim;
  std::function<void(HostPart&)> change;
  std::string told_to_it, told_to_others;
};

TEST_F(MisfitHosts, ReportsBothSidesInWhatTheirStartsDiffer) {
  const std::vector<Misfit> misfits = {{"another number of ranks",
                                        [](HostPart& part) {
                                          part.world_size = 8;
                                          part.secret =
                                              random_secret();  // it depends on the number of ranks
                                        },
                                        "was started for 2 ranks, and this host for 8",
                                        "was started for 8 ranks, and this host for 2"},
                                       {"no secret",
                                        [](HostPart& part) {
                                          part.secret = random_secret();
                                          part.secret.guessable = true;
                                        },
                                        "has a secret, and this host has none",
                                        "has no secret, and this host has one"},
                                       {"another secret",
                                        [](HostPart& part) { part.secret = random_secret(); },
                                        "has another secret than this host",
                                        "has another secret than this host"}};
  for (const Misfit& misfit : misfits) {
    SCOPED_TRACE(misfit.claim);
    start(2, /*join_timeout_s=*/0.6);
    const auto wrong = part(1, 1, 1);
    misfit.change(*wrong);
    std::string of_misfit, of_other;
    const auto meet = [](const std::shared_ptr<HostPart>& part, double timeout_s) -> std::string {
      try {
        const CoordinatorClient mirror(part, kSame, timeout_s);
      } catch (const Error& error) {
        return error.text();
      }
      return "accepted";
    };

    std::jthread other([&] { of_misfit = meet(wrong, 0.3); });
    of_other = meet(part(0, 0, 1), 5.0);
    other.join();

    EXPECT_THAT(of_misfit, AllOf(HasSubstr(misfit.told_to_it), HasSubstr("fix: ")));
    EXPECT_THAT(
        of_other,
        AllOf(HasSubstr("a process at 127.0.0.1 " + misfit.told_to_others), HasSubstr("fix: ")));
    EXPECT_THAT(notices(), testing::SizeIs(1)) << "it has tried several times";
    coordinator_.reset();
    notices_.clear();
  }
}

/// Sends bytes to a new connection, as a program of another version would.
template <class Message>
void send_alone(int fd, const Message& message) {
  EXPECT_EQ(write(fd, &message, sizeof(message)), static_cast<ssize_t>(sizeof(message)));
}

TEST_F(MisfitHosts, ReportsAnotherVersion) {
  start(2, /*join_timeout_s=*/0.5);
  const int fd = stranger();
  Introduction later = introduction(secret_);
  ++later.version;
  send_alone(fd, later);
  std::string text;
  try {
    const CoordinatorClient mirror(part(0, 0, 1), kSame, 5.0);
  } catch (const Error& error) {
    text = error.text();
  }
  close(fd);

  EXPECT_THAT(text,
              AllOf(HasSubstr("a process at 127.0.0.1 runs another version of tessera"),
                    HasSubstr("install the same program on every host")));
}

TEST(WireClients, ReportAHeadOfAnotherVersion) {
  std::string why;
  const launch::Fd listener = listen_on("127.0.0.1", 0, why);
  std::jthread coordinator([&](const std::stop_token& stop) {
    std::vector<launch::Fd> connections;
    while (!stop.stop_requested()) {
      launch::Fd fd(accept(listener.get(), nullptr, nullptr));
      if (fd.get() >= 0) {
        // The greeting of the first version was shorter.
        Introduction first = introduction(Secret());
        first.version = 1;
        send_alone(fd.get(), first);
        connections.push_back(std::move(fd));
      }
      launch::nap();
    }
  });

  std::string text;
  try {
    const FrameClient client(
        "127.0.0.1", port_of(listener.get()), 1, random_secret(), now_s() + 0.2);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::Config);
    text = error.text();
  }

  EXPECT_THAT(text, HasSubstr("runs another version of tessera (protocol 1, and 2 here)"));
}

TEST(MissingHosts, AreNamedAsInTheirHostfile) {
  const std::vector<std::pair<std::string, int>> hosts = {
      {"node-a", 2}, {"node-b", 1}, {"node-c", 2}};

  EXPECT_EQ(missing_hosts(hosts, {{0, 2}, {2, 1}, {3, 2}}, 5), "");
  EXPECT_EQ(missing_hosts(hosts, {{0, 2}, {3, 2}}, 5), "host node-b");
  EXPECT_EQ(missing_hosts(hosts, {{2, 1}}, 5), "hosts node-a, node-c");
  EXPECT_EQ(missing_hosts({}, {{2, 1}}, 5), "the hosts of ranks 0-1, 3-4") << "unknown names";
}

TEST_F(MisfitHosts, KeepsWhatAgentsSayOfTheirEnd) {
  start(2);
  const auto own = part(1, 1, 1);

  EXPECT_TRUE(report_end(*own, 3, HostProblem{Error::Kind::Data, "no data", "give some"}));
  EXPECT_TRUE(report_end(*part(0, 0, 1), 0));
  coordinator_->settle();

  EXPECT_EQ(coordinator_->exit_codes(), (std::map<int, int>{{0, 0}, {1, 3}}));
  ASSERT_TRUE(coordinator_->news().told.contains(1));
  EXPECT_EQ(coordinator_->news().told.at(1).what, "no data");
  EXPECT_EQ(coordinator_->news().told.at(1).kind, Error::Kind::Data);
  coordinator_.reset();
  EXPECT_FALSE(report_end(*own, 3)) << "nobody is there";
}

}  // namespace
}  // namespace tessera::hosts
