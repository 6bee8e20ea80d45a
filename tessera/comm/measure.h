// SPDX-License-Identifier: Apache-2.0
// Measures the speed of a transport's collectives.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "tessera/comm/world.h"

namespace tessera::comm {

/// The speed of one operation for one vector size: the input of a reduce-scatter, the output of an
/// all-gather, the message of a send, and of unequal parts what the rank with most receives.
struct CollectiveSpeed {
  std::string operation;  ///< "all-reduce"
  std::size_t bytes = 0;
  bool in_regions =
      true;  ///< whether peers read the memory directly; otherwise it is copied into a region first
  /// Median of rank 0, from the barrier to completion; 0: there was no time to measure it.
  double seconds = 0;
  double bus_factor = 1;  ///< bytes that a rank sends or receives, as a fraction of `bytes`
  /// Returns the bytes of the vector per second, and the bytes transferred between ranks per
  /// second. Source: NCCL's performance tests.
  [[nodiscard]] double algorithm_bandwidth() const {
    return seconds > 0 ? static_cast<double>(bytes) / seconds : 0.0;
  }
  [[nodiscard]] double bus_bandwidth() const { return bus_factor * algorithm_bandwidth(); }
};

struct MeasureOptions {
  std::vector<std::size_t> bytes = {std::size_t{1} << 20, std::size_t{16} << 20};
  int repetitions = 7;  ///< at most; their median counts, and one more run warms up
  /// Time for everything, of which the remaining measurements get equal parts: there are fewer
  /// repetitions where they would take longer, and none of what does not fit at all. A call that
  /// was begun is completed.
  double seconds = 60;
  bool in_regions = true;  ///< measure memory in regions
  bool ordinary = true;    ///< measure ordinary memory
};

/// Returns the bytes of memory that each rank needs.
std::size_t measure_memory(const MeasureOptions& options);
/// Measures every operation with every size between all ranks of a world of two or more; `on_each`
/// is called on rank 0 with each result, also with those for which there was no time. Sizes are
/// rounded down to whole floats per rank. Collective.
std::vector<CollectiveSpeed> measure_collectives(
    World& world,
    const MeasureOptions& options,
    const std::function<void(const CollectiveSpeed&)>& on_each = {});

}  // namespace tessera::comm
