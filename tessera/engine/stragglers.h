// SPDX-License-Identifier: Apache-2.0
// Finds ranks and hosts that are persistently slower than others with the same work.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::engine {

/// The parts of a step that a rank computes by itself.
inline constexpr std::array<std::string_view, 4> kStepParts = {
    "data", "forward", "backward", "optimizer"};

/// Seconds of one rank since the last report.
struct RankTimes {
  std::array<double, kStepParts.size()> parts{};
  double own = 0.0;  ///< wall time without waits for other ranks
};

struct Straggler {
  int rank = 0;
  int host = -1;       ///< all ranks of this host are slow; -1: only the rank
  double ratio = 1.0;  ///< of its time to the median of ranks with the same work
  std::string part;    ///< the part that takes longer; empty: time outside of the parts
};

/// Compares the times of ranks that have the same work. Ranks wait for the slowest one in
/// collectives, so their wall times are equal, and only the time without waits shows who is slow.
class StragglerFinder {
 public:
  /// For each rank a number of its work and the index of its host: ranks with equal numbers of work
  /// compute the same shapes, as those of one pipeline stage do.
  StragglerFinder(std::vector<int> work, std::vector<int> hosts);
  /// Adds the times of all ranks in `wall_s` seconds of training. Returns a straggler once: when
  /// the same rank or host was slower by a quarter in three periods of two seconds in a row.
  std::optional<Straggler> add(std::span<const RankTimes> times, double wall_s);

 private:
  [[nodiscard]] std::optional<Straggler> slowest() const;
  [[nodiscard]] double ratio_of(int rank) const;
  template <class Value>
  [[nodiscard]] double median_of_peers(int rank, Value value) const;
  [[nodiscard]] std::string part_of(int rank, double& ratio) const;

  std::vector<int> work_, hosts_;
  std::vector<RankTimes> sums_;
  double wall_s_ = 0.0;
  std::pair<int, int> suspect_{-1, -1};  // host or -1, rank or -1
  int periods_ = 0;                      // in which it was slow
  std::set<std::pair<int, int>> told_;
};

}  // namespace tessera::engine
