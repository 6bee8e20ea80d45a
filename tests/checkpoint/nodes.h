// SPDX-License-Identifier: Apache-2.0
// Hosts that share no disk, for tests of checkpoints: each is a folder with two ranks.
#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/support.h"
#include <gtest/gtest.h>

#include "tessera/checkpoint/folders.h"
#include "tessera/checkpoint/node_parts.h"

namespace tessera::checkpoint::test {

constexpr int kNodes = 2, kNodeRanks = 4;
constexpr std::uint64_t kOldSeed = 1, kNewSeed = 2;

/// Runs `work(ranks)` on two ranks of each of two nodes.
template <class F>
void on_nodes(F work) {
  on_ranks(kNodeRanks, [&](const Ranks& me) {
    Ranks mine = me;
    mine.node = me.rank / (kNodeRanks / kNodes);
    mine.nodes = kNodes;
    mine.local_rank = me.rank % (kNodeRanks / kNodes);
    work(mine);
  });
}

/// One folder per node, and the data that is saved in them.
class Nodes {
 public:
  explicit Nodes(std::vector<Spec> of = small_model()) : model(std::move(of)) {}
  const std::vector<Spec> model;
  [[nodiscard]] fs::path root(int node) const {
    return dir_.path() / ("node" + std::to_string(node));
  }
  [[nodiscard]] fs::path part(int node, std::int64_t step) const {
    return root(node) / step_name(step);
  }
  [[nodiscard]] const fs::path& path() const { return dir_.path(); }
  void save(Storage& disk,
            std::int64_t step,
            std::uint64_t seed = 0,
            How how = How::Waiting,
            const std::function<void(int)>& then = {}) const {
    on_nodes([&](const Ranks& me) {
      save_rank(how,
                disk,
                root(me.node),
                step,
                held(model, ranges, me.rank, kNodeRanks, true, seed),
                me,
                [&, node = me.node] {
                  if (then) then(node);
                });
    });
  }
  void save(std::int64_t step, std::uint64_t seed = 0, How how = How::Waiting) const {
    WatchedStorage disk;
    save(disk, step, seed, how);
  }

 private:
  files::TempDir dir_;
};

/// Returns whether the elements that a rank holds in `ranges` are read from `folder` as they were
/// saved.
inline bool own_pieces_load(const Nodes& nodes,
                            const fs::path& folder,
                            int rank,
                            std::uint64_t seed) {
  const Held wanted = held(nodes.model, ranges, rank, kNodeRanks, true, seed);
  Held got = held(nodes.model, ranges, rank, kNodeRanks, false, seed);
  Checkpoint(folder).load(got.pieces);
  return got.memory == wanted.memory;
}

inline std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> out;
  for (const auto& entry : fs::directory_iterator(folder))
    out.push_back(entry.path().filename().string());
  std::sort(out.begin(), out.end());
  return out;
}

/// Returns the step and the seed of the save from which all nodes resume together, if it is one
/// save.
inline std::pair<std::int64_t, std::uint64_t> common_save(const Nodes& nodes) {
  std::vector<std::int64_t> steps(kNodeRanks, -1);
  std::vector<std::uint64_t> seeds(kNodeRanks, 0);
  on_nodes([&](const Ranks& me) {
    const auto folder = newest_common(nodes.root(me.node), me);
    if (!folder) return;
    require_one_save(Checkpoint(*folder), me);
    const auto at = static_cast<std::size_t>(me.rank);
    steps[at] = *step_of(*folder);
    for (const std::uint64_t seed : {kOldSeed, kNewSeed}) {
      if (own_pieces_load(nodes, *folder, me.rank, seed)) seeds[at] = seed;
    }
  });
  EXPECT_EQ(std::count(steps.begin(), steps.end(), steps[0]), kNodeRanks);
  EXPECT_EQ(std::count(seeds.begin(), seeds.end(), seeds[0]), kNodeRanks);
  return {steps[0], seeds[0]};
}

/// Names the test by its way of saving.
inline std::string name_of_how(const ::testing::TestParamInfo<How>& info) {
  return info.param == How::Waiting      ? "Waiting"
         : info.param == How::Background ? "Background"
                                         : "BackgroundThenWaiting";
}

}  // namespace tessera::checkpoint::test
