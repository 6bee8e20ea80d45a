// SPDX-License-Identifier: Apache-2.0
// When weights of stage 3 are gathered and released: WeightGather executes this order, and a plan
// computes its memory. It works on sizes only. Source: DeepSpeed's parameter coordinator (ZeRO
// stage 3).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace tessera::parallel {

/// All values are numbers of elements.
struct GatherOptions {
  /// Maximum number of elements to prefetch; 0 disables prefetching; unset: the weights of the next
  /// block.
  std::optional<std::int64_t> prefetch;
  /// Maximum number of gathered elements at any time, not counting those of one block.
  std::int64_t max_live = 1'000'000'000;
  /// Weights that are used again within this many elements stay gathered; 0: only those that the
  /// very next run of a block uses.
  std::int64_t max_reuse_distance = 0;
  bool operator==(const GatherOptions&) const = default;
};

/// For each block, the indices of its sharded buffers.
using GroupsOfBlocks = std::vector<std::vector<int>>;

/// The order of block runs is known from the list of actions, so nothing needs recording, and the
/// order is the same on every rank. Between begin() and the end of the trace, call before(),
/// ahead() and after() for each run. Cost of after(): the number of runs within the reuse distance.
/// Threads: one.
class GatherOrder {
 public:
  /// `numel`: the size of each sharded buffer.
  GatherOrder(GroupsOfBlocks blocks, std::vector<std::int64_t> numel, GatherOptions options);

  /// `trace`: the block of every run to come. Buffers that are gathered stay gathered.
  void begin(std::vector<int> trace);
  /// The block that runs next; empty after the last run.
  [[nodiscard]] std::optional<int> next() const;
  /// Returns the buffers of the next run that must be gathered.
  std::vector<int> before();
  /// Returns the buffers of later runs to gather, as far as both limits allow.
  std::vector<int> ahead();
  /// Returns the first `count` buffers that later runs need and that are not gathered.
  [[nodiscard]] std::vector<int> upcoming(int count) const;
  /// Ends a run; returns the buffers to release.
  std::vector<int> after();
  /// Ends the trace; returns all buffers that are still gathered.
  std::vector<int> end();

  /// Number of elements that are gathered now, and the highest number so far.
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
