// SPDX-License-Identifier: Apache-2.0
// Which weights of stage 3 are gathered when, and given back: what WeightGather does and a plan
// counts. Knows numbers alone. Source: DeepSpeed's parameter coordinator (ZeRO stage 3).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace tessera::parallel {

/// All in elements.
struct GatherOptions {
  /// Gathered ahead of their use at most; 0: nothing is. Unset: the next block.
  std::optional<std::int64_t> prefetch;
  std::int64_t max_live = 1'000'000'000;  ///< gathered at any time at most, but for one block
  std::int64_t max_reuse_distance = 0;    ///< weights used again within so many stay; 0: those that
                                          ///< the very next run of a block uses
};

/// The sharded buffers of each block: indices into their sizes.
using GroupsOfBlocks = std::vector<std::vector<int>>;

/// The order of block runs is known from the list of actions, so there is nothing to record and it
/// is the same on every rank. Between begin() and the end of the trace, for each run: before(),
/// ahead(), after(). Cost of after(): the runs until the reuse distance. Threads: one.
class GatherOrder {
 public:
  /// `numel`: of each sharded buffer.
  GatherOrder(GroupsOfBlocks blocks, std::vector<std::int64_t> numel, GatherOptions options);

  /// `trace`: the block of every run to come. What was gathered still is.
  void begin(std::vector<int> trace);
  /// The block that runs next, or nothing behind the last run.
  [[nodiscard]] std::optional<int> next() const;
  /// Buffers of the next run that are to be gathered.
  std::vector<int> before();
  /// And of the runs behind it, as far as both limits allow.
  std::vector<int> ahead();
  /// The run is over: what is to be given back.
  std::vector<int> after();
  /// Everything that is still there.
  std::vector<int> end();

  /// Elements that are gathered now, and the most there were.
  [[nodiscard]] std::int64_t live() const { return live_; }
  [[nodiscard]] std::int64_t most_live() const { return most_live_; }

 private:
  void gather(int group, std::vector<int>& out);
  void give_back(int group, std::vector<int>& out);
  [[nodiscard]] bool needed_soon(int group) const;
  [[nodiscard]] const std::vector<int>& groups_of(std::size_t run) const;

  GroupsOfBlocks blocks_;
  std::vector<std::int64_t> numel_;
  GatherOptions options_;
  std::vector<bool> gathered_;
  std::vector<int> trace_;
  std::size_t at_ = 0;
  std::int64_t live_ = 0, most_live_ = 0;
};

}  // namespace tessera::parallel
