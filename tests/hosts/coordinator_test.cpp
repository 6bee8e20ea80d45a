// SPDX-License-Identifier: Apache-2.0
// labels: slow
// Hosts of a job meet: the coordinator and the mirrors of control pages, over loopback.
#include "tessera/hosts/coordinator.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "hosts/coordinator_support.h"
#include "launch/fake_job.h"
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tessera/base/clock.h"
#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/hosts/coordinator_client.h"
#include "tessera/hosts/coordinator_connections.h"
#include "tessera/hosts/host_check.h"
#include "tessera/hosts/host_part.h"

namespace tessera::hosts {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;

/// Two hosts that have met, each with a control page.
struct TwoHosts {
  TwoHosts(const std::shared_ptr<HostPart>& a, const std::shared_ptr<HostPart>& b)
      : pages{Page(a->world_size), Page(a->world_size)} {
    std::jthread other([&] { mirrors[1] = std::make_unique<CoordinatorClient>(b, kSame, 20.0); });
    mirrors[0] = std::make_unique<CoordinatorClient>(a, kSame, 20.0);
    other.join();
    for (std::size_t i = 0; i < 2; ++i) {
      mirrors[i]->start(*pages[i], [this, i](int signal) { signals[i] = signal; });
    }
  }
  Page pages[2];
  std::atomic<int> signals[2] = {0, 0};
  std::unique_ptr<CoordinatorClient> mirrors[2];  // must be destroyed before the pages
};

TEST_F(HeadOfHosts, ShowsTheLinesOfEveryHostToTheOthers) {
  start(4);
  TwoHosts hosts(part(0, 0, 2), part(1, 2, 2));

  hosts.pages[0]->line(1).step = 12;
  hosts.pages[1]->line(3).last_seq = 5;
  std::snprintf(hosts.pages[1]->line(3).where, sizeof(RankLine::where), "reduce h.3");

  EXPECT_TRUE(launch::eventually([&] { return hosts.pages[1]->line(1).step == 12; }));
  EXPECT_TRUE(launch::eventually([&] { return hosts.pages[0]->line(3).last_seq == 5; }));
  // The first word of the text: another thread writes it.
  std::uint64_t expected = 0;
  std::memcpy(&expected, "reduce h.3", sizeof(expected));
  const auto* const word = reinterpret_cast<const std::uint64_t*>(hosts.pages[0]->line(3).where);
  EXPECT_TRUE(
      launch::eventually([&] { return __atomic_load_n(word, __ATOMIC_RELAXED) == expected; }));
  EXPECT_EQ(hosts.pages[0]->line(0).step, -1);
}

TEST_F(HeadOfHosts, CarriesTheEndOfTheWorldAndSignals) {
  start(4);
  TwoHosts hosts(part(0, 0, 2), part(1, 2, 2));

  coordinator_->stop_hosts(15);
  EXPECT_TRUE(launch::eventually([&] { return hosts.signals[0] == 15 && hosts.signals[1] == 15; }));
  hosts.pages[1]->abort(3, static_cast<std::uint32_t>(Error::Kind::Numeric), "the loss is nan");

  EXPECT_TRUE(launch::eventually([&] { return hosts.pages[0]->aborted != 0; }, 2.0))
      << "within 2 s";
  EXPECT_EQ(hosts.pages[0]->abort_message(), "the loss is nan");
  EXPECT_EQ(hosts.pages[0]->abort_rank, 3U);
  EXPECT_EQ(hosts.pages[0]->aborted, static_cast<std::uint32_t>(Error::Kind::Numeric) + 1);
  EXPECT_EQ(coordinator_->abort_text(), "the loss is nan");
}

TEST_F(HeadOfHosts, WaitsUntilAllHaveLeft) {
  start(2);
  { TwoHosts hosts(part(0, 0, 1), part(1, 1, 1)); }
  coordinator_->wait_until_left();

  EXPECT_EQ(coordinator_->abort_text(), "");
}

/// Joins as a host and then vanishes without a message, like a host that loses its power.
void vanish(const HostPart& part) {
  FrameClient client(part.master, part.port, 1, part.secret, now_s() + 10.0);
  arrive(client, part, facts_of_this_host());
  const std::optional<Frame> frame = client.receive(now_s() + 10.0);
  ASSERT_TRUE(frame);
}

TEST_F(HeadOfHosts, NamesAHostThatIsLost) {
  start(2);
  const auto lost = part(1, 1, 1);
  std::jthread other([&] { vanish(*lost); });
  Page page(2);
  CoordinatorClient mirror(part(0, 0, 1), kSame, 20.0);
  mirror.start(*page, [](int) {});

  EXPECT_TRUE(launch::eventually([&] { return page->aborted != 0; }, 2.0)) << "within 2 s";
  EXPECT_THAT(page->abort_message(),
              HasSubstr("host node-1 was lost (ranks 1 to 1): its connection was closed"));
}

TEST_F(HeadOfHosts, NamesAHostThatFallsSilent) {
  start(2, 20.0, /*silence_s=*/2.5);  // a mirror sends a frame every second
  const auto silent = part(1, 1, 1);
  std::jthread other([&] {
    FrameClient client(silent->master, silent->port, 1, silent->secret, now_s() + 10.0);
    arrive(client, *silent, facts_of_this_host());
    launch::nap(6.0);
  });
  Page page(2);
  CoordinatorClient mirror(part(0, 0, 1), kSame, 20.0);
  mirror.start(*page, [](int) {});

  EXPECT_TRUE(launch::eventually([&] { return page->aborted != 0; }));
  EXPECT_THAT(page->abort_message(),
              HasSubstr("node-1 was lost (ranks 1 to 1): it has sent nothing for 2.5 s"));
}

TEST_F(HeadOfHosts, NotifiesAHostThatTheHeadIsLost) {
  start(1);
  Page page(1);
  CoordinatorClient mirror(part(0, 0, 1), kSame, 20.0);
  mirror.start(*page, [](int) {});

  coordinator_.reset();

  EXPECT_TRUE(launch::eventually([&] { return page->aborted != 0; }));
  EXPECT_THAT(page->abort_message(), HasSubstr("the host of rank 0, 127.0.0.1, was lost"));
}

/// Returns both hosts' errors.
std::vector<std::string> both_refused(const std::shared_ptr<HostPart>& a,
                                      const std::shared_ptr<HostPart>& b,
                                      const FactsOfHost& facts_of_b = kSame) {
  std::vector<std::string> texts(2);
  const auto join =
      [&](std::size_t i, const std::shared_ptr<HostPart>& part, const FactsOfHost& facts) {
        try {
          const CoordinatorClient mirror(part, facts, 5.0);
          texts[i] = "accepted";
        } catch (const Error& error) {
          texts[i] = error.text();
        }
      };
  std::jthread other([&] { join(1, b, facts_of_b); });
  join(0, a, kSame);
  other.join();
  return texts;
}

TEST_F(HeadOfHosts, RefusesHostsThatWereAskedForDifferentThings) {
  start(4);

  const auto texts = both_refused(part(0, 0, 2), part(1, 2, 2), setting("2"));

  for (const std::string& text : texts)
    EXPECT_THAT(text, HasSubstr("optimizer.params.lr differs: 2 on host node-1, 1 on host node-0"));
}

TEST_F(HeadOfHosts, RefusesAnotherBuildAndWarnsOfAnotherClock) {
  start(2);
  const auto a = part(0, 0, 1), b = part(1, 1, 1);
  HostFacts facts = facts_of_this_host();
  EXPECT_EQ(facts.build.size(), 16U);
  FrameClient one(a->master, a->port, 1, a->secret, now_s() + 5.0);
  FrameClient other(b->master, b->port, 1, b->secret, now_s() + 5.0);

  arrive(one, *a, facts);
  launch::nap(0.2);
  facts.build = "0123456789abcdef";
  arrive(other, *b, facts);

  std::optional<Frame> frame;
  do {
    frame = other.receive(now_s() + 5.0);
  } while (frame && frame->type == FrameType::Alive);
  ASSERT_TRUE(frame);
  ASSERT_EQ(frame->type, FrameType::Refuse);
  FrameReader body(*frame);
  body.number<std::uint32_t>();
  EXPECT_THAT(body.text(), HasSubstr("host node-1 runs another build of tessera than host node-0"));
}

TEST_F(HeadOfHosts, NamesTheProblemsOfAllHostsAtOnce) {
  start(3);
  const auto a = part(0, 0, 1), b = part(1, 1, 1), c = part(2, 2, 1);
  HostFacts facts = facts_of_this_host();
  FrameClient one(b->master, b->port, 1, b->secret, now_s() + 5.0);
  FrameClient two(c->master, c->port, 1, c->secret, now_s() + 5.0);

  facts.torch = "fedcba9876543210";
  facts.problems = {"it cannot listen on 10.0.0.2: no device"};
  arrive(one, *b, facts);
  facts = facts_of_this_host();
  arrive(two, *c, facts, setting("2"));

  std::string text;
  try {
    const CoordinatorClient mirror(a, kSame, 20.0);
  } catch (const Error& error) {
    text = error.text();
  }
  EXPECT_THAT(text,
              AllOf(HasSubstr("the hosts have 3 problems"),
                    HasSubstr("host node-1 has another libtorch than host node-0"),
                    HasSubstr("host node-1: it cannot listen on 10.0.0.2"),
                    HasSubstr("optimizer.params.lr differs: 2 on host node-2, 1 on host node-0")));
  EXPECT_THAT(table(), testing::SizeIs(4)) << "the table is shown all the same";
}

/// Starts two mirrors with these run folders; returns the error of the first one.
std::string meet_with_folders(const std::shared_ptr<HostPart>& a,
                              const std::shared_ptr<HostPart>& b,
                              const RunFolderCheck& of_a,
                              const RunFolderCheck& of_b) {
  std::jthread other([&] {
    try {
      const CoordinatorClient mirror(b, kSame, 20.0, of_b);
    } catch (const Error&) {  // the same as the first one's
    }
  });
  try {
    const CoordinatorClient mirror(a, kSame, 20.0, of_a);
    return "accepted";
  } catch (const Error& error) {
    return error.text();
  }
}

TEST_F(HeadOfHosts, FindsOutWhetherTheRunFolderIsShared) {
  start(2);
  const files::TempDir one;

  EXPECT_EQ(
      meet_with_folders(
          part(0, 0, 1), part(1, 1, 1), {one.path().string(), true}, {one.path().string(), true}),
      "accepted");
  EXPECT_THAT(table()[1], HasSubstr(" shared "));
  EXPECT_THAT(table()[2], HasSubstr(" shared "));
  EXPECT_TRUE(std::filesystem::is_empty(one.path())) << "nothing is left in the folder";
}

TEST_F(HeadOfHosts, RefusesRunFoldersOfEachHostIfTheJobCannotSaveIntoThem) {
  start(2);
  const files::TempDir one, other;

  const std::string text = meet_with_folders(
      part(0, 0, 1), part(1, 1, 1), {one.path().string(), true}, {other.path().string(), true});

  EXPECT_THAT(text,
              AllOf(HasSubstr("host node-1 does not see the run folder of host node-0"),
                    HasSubstr("checkpoint.use_node_local_storage=true")));
}

TEST_F(HeadOfHosts, RefusesOneRunFolderIfEachHostSavesItsOwnPart) {
  start(2);
  const files::TempDir one;

  const std::string text = meet_with_folders(part(0, 0, 1),
                                             part(1, 1, 1),
                                             {one.path().string(), false, true},
                                             {one.path().string(), false, true});

  EXPECT_THAT(text,
              AllOf(HasSubstr("hosts node-0 and node-1 share the run folder"),
                    HasSubstr("checkpoint.use_node_local_storage to false")));
}

TEST_F(HeadOfHosts, AcceptsARunFolderOfEachHostIfEachSavesItsOwnPart) {
  start(2);
  const files::TempDir one, other;

  EXPECT_EQ(meet_with_folders(part(0, 0, 1),
                              part(1, 1, 1),
                              {one.path().string(), false, true},
                              {other.path().string(), false, true}),
            "accepted");
}

TEST_F(HeadOfHosts, ReportsThatEachHostHasARunFolderOfItsOwn) {
  start(2);
  const files::TempDir one, other;

  EXPECT_EQ(meet_with_folders(part(0, 0, 1),
                              part(1, 1, 1),
                              {one.path().string(), false},
                              {other.path().string(), false}),
            "accepted");
  EXPECT_THAT(table()[2], HasSubstr(" own "));
}

TEST_F(HeadOfHosts, NamesAHostThatCannotBeReached) {
  start(2);
  const auto b = part(1, 1, 1);
  HostFacts facts = facts_of_this_host();
  facts.address = "127.0.0.1";
  {
    const ProbeListener closed("127.0.0.1");
    facts.port = closed.port();
  }
  std::jthread other([&] {
    FrameClient client(b->master, b->port, 1, b->secret, now_s() + 5.0);
    arrive(client, *b, facts);
    while (const std::optional<Frame> frame = client.receive(now_s() + 5.0)) {
      if (frame->type == FrameType::Refuse) return;
      if (frame->type != FrameType::Probe) continue;
      client.send(FrameWriter(FrameType::Probed).number(std::uint8_t{2}).number(std::uint32_t{0}));
    }
  });

  std::string text;
  try {
    const CoordinatorClient mirror(part(0, 0, 1), kSame, 20.0);
  } catch (const Error& error) {
    text = error.text();
  }
  EXPECT_THAT(text,
              HasSubstr("host node-0 cannot connect to host node-1 at 127.0.0.1: Connection "
                        "refused"));
}

TEST_F(HeadOfHosts, ShowsATableOfHosts) {
  start(2);
  const auto a = part(0, 0, 1), b = part(1, 1, 1);
  HostFacts facts = facts_of_this_host();
  FrameClient other(b->master, b->port, 1, b->secret, now_s() + 5.0);
  facts.clock_s -= 100.0;
  facts.memory = std::uint64_t{3} << 30;
  arrive(other, *b, facts);
  const CoordinatorClient mirror(a, kSame, 20.0);

  EXPECT_TRUE(launch::eventually([&] { return !table().empty(); }));
  EXPECT_THAT(table(), testing::SizeIs(3));
  EXPECT_THAT(table()[1], HasSubstr("node-0"));
  EXPECT_THAT(table()[2], AllOf(HasSubstr("node-1"), HasSubstr("3.0 GiB"), HasSubstr("-100.")));
  EXPECT_THAT(notices(), Contains(HasSubstr("the clock of host node-1 differs")));
}

TEST_F(HeadOfHosts, RefusesRanksThatTwoHostsHave) {
  start(4);

  for (const std::string& text : both_refused(part(0, 0, 2), part(1, 1, 2)))
    EXPECT_THAT(text, HasSubstr("both have rank 1"));
}

TEST_F(HeadOfHosts, RefusesRanksWithinThoseOfAnotherHost) {
  start(8);

  for (const std::string& text : both_refused(part(0, 0, 4), part(1, 2, 1)))
    EXPECT_THAT(text, HasSubstr("both have rank 2"));
}

TEST_F(HeadOfHosts, RefusesRanksBeyondThoseOfTheJob) {
  start(4);

  // Rank 2 is missing: the number of ranks alone is right.
  for (const std::string& text : both_refused(part(0, 0, 2), part(1, 3, 2))) {
    EXPECT_THAT(text, HasSubstr("host node-1 has the ranks 3 to 4 of a job of 4 ranks"));
    EXPECT_THAT(text, HasSubstr("give every host a node rank of its own"));
  }
}

TEST_F(HeadOfHosts, LetsHundredsMeet) {
  constexpr int kHosts = 300;
  start(kHosts);
  const HostFacts facts = facts_of_this_host();
  std::vector<std::unique_ptr<FrameClient>> clients;

  // The hosts connect in another order than that of their ranks.
  for (int i = 0; i < kHosts; ++i) {
    clients.push_back(std::make_unique<FrameClient>(
        "127.0.0.1", coordinator_->port(), 1, secret_, now_s() + 20.0));
    HostPart part;
    part.host = part.first_rank = (i * 7) % kHosts;
    part.world_size = kHosts;
    part.name = "node-" + std::to_string(part.host);
    arrive(*clients.back(), part, facts);
  }

  for (const auto& client : clients) {
    std::optional<Frame> frame;
    do {
      frame = client->receive(now_s() + 20.0);
      ASSERT_TRUE(frame.has_value());
      ASSERT_NE(frame->type, FrameType::Refuse);
    } while (frame->type != FrameType::Ready);
  }
  EXPECT_TRUE(coordinator_->ready());
  ASSERT_THAT(table(), testing::SizeIs(kHosts + 1));
  EXPECT_THAT(table()[7], HasSubstr("node-6 "));
}

TEST_F(HeadOfHosts, NamesTheRanksThatDidNotArrive) {
  start(6, /*join_timeout_s=*/0.3);
  std::string text;
  try {
    const CoordinatorClient mirror(part(0, 0, 2), kSame, 5.0);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::Comm);
    text = error.text();
  }

  EXPECT_THAT(text, HasSubstr("the hosts of ranks 2-5 did not arrive within 0.3 s"));
}

TEST_F(HeadOfHosts, RefusesAndReportsStrangers) {
  start(1);
  auto wrong = part(0, 0, 1);
  wrong->secret = random_secret();

  EXPECT_THROW(CoordinatorClient(wrong, kSame, 0.3), Error);
  const int fd = stranger();
  const std::string noise(4096, 'x');
  static_cast<void>(!write(fd, noise.data(), noise.size()));

  EXPECT_TRUE(launch::eventually([&] { return notices().size() >= 2; }));
  EXPECT_THAT(notices(), Contains(HasSubstr("it does not know the secret of this job")));
  // The stranger gets the greeting, and nothing after it.
  std::string answer;
  char part_of_answer[256];
  for (ssize_t n = 1; n > 0;) {
    n = recv(fd, part_of_answer, sizeof(part_of_answer), 0);
    if (n > 0) answer.append(part_of_answer, static_cast<std::size_t>(n));
  }
  EXPECT_LE(answer.size(), sizeof(Greeting));
  close(fd);
  // The job itself is not disturbed.
  const CoordinatorClient mirror(part(0, 0, 1), kSame, 5.0);
}

TEST_F(HeadOfHosts, ClosesAHostWhoseFramesAreMalformed) {
  start(2);
  const auto own = part(0, 0, 1);
  FrameClient client(own->master, own->port, 1, own->secret, now_s() + 5.0);

  client.send(FrameWriter(FrameType::Set).number(std::uint32_t{1000}));  // a text of 1,000 bytes

  EXPECT_TRUE(launch::eventually([&] {
    client.receive(now_s() + 0.01);
    return client.closed();
  }));
  EXPECT_THAT(notices(), Contains(HasSubstr("too short")));
}

TEST_F(HeadOfHosts, KeepsValuesAndAnswersWhenTheyAreSet) {
  start(1);
  const auto own = part(0, 0, 1);
  FrameClient asking(own->master, own->port, 1, own->secret, now_s() + 5.0);
  FrameClient telling(own->master, own->port, 1, own->secret, now_s() + 5.0);

  asking.send(FrameWriter(FrameType::Get).text("address"));
  EXPECT_FALSE(asking.receive(now_s() + 0.05)) << "nobody has set it";
  telling.send(FrameWriter(FrameType::Set).text("address").text(std::string("10.0\0.1", 7)));
  const std::optional<Frame> frame = asking.receive(now_s() + 5.0);

  ASSERT_TRUE(frame);
  ASSERT_EQ(frame->type, FrameType::Value);
  FrameReader body(*frame);
  EXPECT_EQ(body.text(), "address");
  EXPECT_EQ(body.text(), std::string("10.0\0.1", 7));
}

TEST_F(HeadOfHosts, TakesTheNextPortIfOneIsTaken) {
  start(1);
  CoordinatorOptions options;
  options.address = "127.0.0.1";
  options.port = coordinator_->port();
  options.ports = 3;
  options.secret = random_secret();

  EXPECT_GT(Coordinator(options).port(), coordinator_->port());
  options.ports = 1;
  EXPECT_THROW(Coordinator{options}, Error);
  options.address = "192.0.2.1";  // no address of this host
  EXPECT_THROW(Coordinator{options}, Error);
}

TEST(Secrets, AreReadAndProved) {
  const Secret secret = random_secret();
  const auto bytes = [](std::string_view text) { return std::as_bytes(std::span(text)); };

  EXPECT_EQ(secret_from_hex(to_hex(secret))->key, secret.key);
  EXPECT_FALSE(secret_from_hex(to_hex(secret).substr(1)));
  EXPECT_FALSE(secret_from_hex(std::string(64, 'g')));
  EXPECT_NE(random_secret().key, secret.key);
  EXPECT_TRUE(
      same_mac(mac_of(secret, {bytes("a"), bytes("b")}), mac_of(secret, {bytes("a"), bytes("b")})));
  EXPECT_FALSE(
      same_mac(mac_of(secret, {bytes("ab"), bytes("")}), mac_of(secret, {bytes("a"), bytes("b")})));
  EXPECT_FALSE(same_mac(mac_of(secret, {bytes("a")}), mac_of(random_secret(), {bytes("a")})));
}

TEST(Secrets, ComeFromAFileThatOnlyItsOwnerReads) {
  const files::TempDir folder;
  const std::string path = (folder.path() / "secret").string();
  files::write_atomic(path, std::string(32, 's'));
  chmod(path.c_str(), 0600);
  setenv("TESSERA_SECRET_FILE", path.c_str(), 1);

  const Secret one = shared_secret("job"), other = shared_secret("other job");
  EXPECT_FALSE(one.guessable);
  EXPECT_NE(one.key, other.key);
  EXPECT_EQ(one.key, shared_secret("job").key);
  chmod(path.c_str(), 0644);
  EXPECT_THROW(shared_secret("job"), Error);
  chmod(path.c_str(), 0600);
  files::write_atomic(path, "short");
  chmod(path.c_str(), 0600);
  EXPECT_THROW(shared_secret("job"), Error);
  unsetenv("TESSERA_SECRET_FILE");
  EXPECT_TRUE(shared_secret("job").guessable);
  EXPECT_NE(shared_secret("job").key, shared_secret("other job").key);
}

}  // namespace
}  // namespace tessera::hosts
