// SPDX-License-Identifier: Apache-2.0
// labels: slow multiprocess
// timeout: 300
// Hosts that share no disk and save together: whatever happens to one, all resume consistently.
#include <algorithm>
#include <string>
#include <vector>

#include "checkpoint/killed.h"
#include "checkpoint/nodes.h"
#include "checkpoint/support.h"
#include <gtest/gtest.h>

namespace tessera::checkpoint::test {
namespace {

const std::vector<Spec> kModel = {{"wte", DType::F32, {13, 8}},
                                  {"optimizer.exp_avg.wte", DType::F32, {13, 8}}};

class EverySaveOfNodes : public ::testing::TestWithParam<How> {};
INSTANTIATE_TEST_SUITE_P(,
                         EverySaveOfNodes,
                         ::testing::Values(How::Waiting,
                                           How::Background,
                                           How::BackgroundThenWaiting),
                         name_of_how);

/// Kills all nodes before each change in turn, and resumes from what remains.
void expect_survival(std::int64_t old_step, std::int64_t step, How how) {
  bool died = true;
  int n = 0;
  for (; died; ++n) {
    SCOPED_TRACE("change " + std::to_string(n));
    const Nodes nodes(kModel);
    nodes.save(old_step, kOldSeed);

    died = killed_at(n, true, [&](Storage& disk) { nodes.save(disk, step, kNewSeed, how); });

    const auto [found, seed] = common_save(nodes);
    EXPECT_TRUE((found == old_step && seed == kOldSeed) || (found == step && seed == kNewSeed))
        << found << ' ' << seed;
    EXPECT_TRUE(died || seed == kNewSeed);

    nodes.save(step + 1, kNewSeed);
    EXPECT_EQ(common_save(nodes), std::pair(step + 1, kNewSeed));
    for (int node = 0; node < kNodes; ++node) {
      for (const std::string& name : names_in(nodes.root(node)))
        EXPECT_NE(name.front(), '.') << name;
    }
  }
  EXPECT_GT(n, 40);
}

TEST_P(EverySaveOfNodes, ThatIsKilledLeavesAllThePreviousOneOrAllTheNewOne) {
  expect_survival(100, 200, GetParam());
}

TEST_P(EverySaveOfNodes, ThatIsKilledWhileReplacingAStepLeavesAllTheOldOrAllTheNewOne) {
  expect_survival(100, 100, GetParam());
}

/// Every call fails on the disk of either node in turn: all ranks report the same error, and both
/// nodes keep what they had.
TEST_P(EverySaveOfNodes, ThatFailsOnOneNodeIsTakenBackOnAll) {
  for (const std::int64_t step : {1, 2}) {
    bool failed = true;
    for (int n = 0; failed; ++n) {
      SCOPED_TRACE("change " + std::to_string(n) + " of step " + std::to_string(step));
      const Nodes nodes(kModel);
      nodes.save(1, kOldSeed);
      int left = n;
      std::string place;
      bool spared = false;  // need not succeed
      WatchedStorage disk([&](const std::string& operation, const fs::path& path) {
        if (left-- != 0) return;
        place = path.string();
        spared = path.filename() == "latest" || place.find(".replaced-") != std::string::npos;
        throw Error(Error::Kind::Io, "cannot " + operation + " " + place, "free some space");
      });
      std::vector<std::string> said(kNodeRanks);

      on_nodes([&](const Ranks& me) {
        try {
          save_rank(GetParam(),
                    disk,
                    nodes.root(me.node),
                    step,
                    held(kModel, ranges, me.rank, kNodeRanks, true, kNewSeed),
                    me);
        } catch (const Error& error) {
          said[static_cast<std::size_t>(me.rank)] = error.text();
        }
      });

      failed = !place.empty();
      EXPECT_EQ(std::count(said.begin(), said.end(), said[0]), kNodeRanks);
      EXPECT_EQ(common_save(nodes),
                (said[0].empty() ? std::pair(step, kNewSeed) : std::pair(1L, kOldSeed)));
      EXPECT_TRUE(said[0].empty() || said[0].find(place) != std::string::npos) << said[0];
      EXPECT_TRUE(!said[0].empty() || !failed || spared) << place;
    }
  }
}

}  // namespace
}  // namespace tessera::checkpoint::test
