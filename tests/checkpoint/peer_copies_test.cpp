// SPDX-License-Identifier: Apache-2.0
// labels: fast
// Copies of a state in the memories of hosts, of which some are lost.
#include "tessera/checkpoint/peer_copies.h"

#include <memory>
#include <string>
#include <vector>

#include "checkpoint/support.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tessera/hosts/copy_server.h"

namespace tessera::checkpoint::test {
namespace {

using hosts::CopySet;
using testing::HasSubstr;

/// Hosts with one rank each.
class CopiesOfHosts : public testing::Test {
 protected:
  static constexpr int kHosts = 4;

  CopiesOfHosts() {
    for (int host = 0; host < kHosts; ++host)
      servers_.push_back(std::make_unique<hosts::CopyServer>("127.0.0.1", secret_));
    for (int host = 0; host < kHosts; ++host)
      places_.push_back({"node-" + std::to_string(host),
                         "127.0.0.1",
                         servers_[static_cast<std::size_t>(host)]->port()});
  }

  void copy(const CopySet& set, Layout layout, std::uint64_t seed, const CopySet& keep = {}) {
    on_ranks(kHosts, [&](const Ranks& me) {
      auto mine = std::make_shared<const Held>(
          held(small_model(), layout, me.rank, me.size, /*filled=*/true, seed));
      const auto own = static_cast<std::size_t>(me.rank);
      CopyTarget target{{places_[own], places_[(own + 1) % kHosts]}, secret_, set, keep};
      BackgroundSave save(
          copy_saver(std::move(target), meta_at(set.step), mine->pieces, me.rank, me.size),
          mine->pieces,
          mine,
          me);
      while (!save.settled())
        make_step(save, me);
      save.finish();
    });
  }
  void lose(int host) { servers_[static_cast<std::size_t>(host)].reset(); }
  /// The servers that are left.
  hosts::CopyPart part(const CopySet& from) {
    hosts::CopyPart part;
    for (std::size_t host = 0; host < places_.size(); ++host) {
      if (servers_[host] != nullptr) part.places.push_back(places_[host]);
    }
    part.from = from;
    return part;
  }
  /// Loads the state on two ranks in another layout, and returns whether it is that of `seed`.
  static bool is_state(const Checkpoint& opened, std::uint64_t seed) {
    for (int rank = 0; rank < 2; ++rank) {
      const Held expected = held(small_model(), columns, rank, 2, /*filled=*/true, seed);
      Held loaded = held(small_model(), columns, rank, 2, /*filled=*/false);
      opened.load(loaded.pieces);
      if (loaded.memory != expected.memory) return false;
    }
    return true;
  }

  const hosts::Secret secret_ = hosts::random_secret();
  std::vector<std::unique_ptr<hosts::CopyServer>> servers_;
  std::vector<hosts::CopyPlace> places_;
};

TEST_F(CopiesOfHosts, HoldTheWholeStateWithoutOneOfThem) {
  copy({0, 30}, rows_then_ranges, 1);
  for (int lost = 0; lost < kHosts; lost += 2)
    lose(lost);  // no two neighbours

  const Checkpoint opened = open_copies(part({0, 30}), secret_);

  EXPECT_EQ(opened.meta().step, 30);
  EXPECT_EQ(opened.meta().samples, meta_at(30).samples);
  EXPECT_EQ(opened.meta().extra.dump(), meta_at(30).extra.dump());
  EXPECT_TRUE(is_state(opened, 1));
}

TEST_F(CopiesOfHosts, AreTheLastCompleteOnesWhileTheNextAreWritten) {
  copy({0, 30}, ranges, 1);
  copy({0, 40}, ranges, 2, {0, 30});

  EXPECT_TRUE(is_state(open_copies(part({0, 30}), secret_), 1));
  EXPECT_TRUE(is_state(open_copies(part({0, 40}), secret_), 2));
}

TEST_F(CopiesOfHosts, AreRefusedWhereTwoNeighboursAreLost) {
  copy({0, 30}, ranges, 1);
  lose(1);
  lose(2);
  std::vector<hosts::CopyListing> listings;
  for (const auto& server : servers_) {
    if (server == nullptr) continue;
    for (const hosts::CopyListing& one : server->list())
      listings.push_back(one);
  }

  EXPECT_FALSE(hosts::find_copies(listings).complete.exists());
  EXPECT_EQ(hosts::find_copies(listings).missing, 1);
  try {
    open_copies(part({0, 30}), secret_);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::Format);
    EXPECT_THAT(error.what(), HasSubstr("lack part-00001.json"));
  }
}

TEST_F(CopiesOfHosts, FailOnAllRanksWhereAServerIsGone) {
  copy({0, 30}, ranges, 1);
  lose(2);

  try {
    copy({0, 40}, ranges, 2, {0, 30});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::Io);
    EXPECT_THAT(error.what(), HasSubstr("copy server of host node-2"));
  }
  EXPECT_TRUE(is_state(open_copies(part({0, 30}), secret_), 1));
}

TEST_F(CopiesOfHosts, AreReadByAProcessThatIsForkedAfterTheyWereOpened) {
  copy({0, 30}, ranges, 1);
  const Checkpoint opened = open_copies(part({0, 30}), secret_);

  const pid_t child = fork();
  if (child == 0) _exit(is_state(opened, 1) ? 0 : 1);
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);

  EXPECT_EQ(status, 0);
  EXPECT_TRUE(is_state(opened, 1));
}

}  // namespace
}  // namespace tessera::checkpoint::test
