// SPDX-License-Identifier: Apache-2.0
// How fast the collectives of a transport are.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "tessera/comm/world.h"

namespace tessera::comm {

/// One operation on one size of vector: the input of a reduce-scatter, the output of an all-gather,
/// the message of a send.
struct CollectiveSpeed {
  std::string operation;  ///< "all-reduce"
  std::size_t bytes = 0;
  bool in_regions = true;  ///< in memory that peers read directly; else it is copied there first
  double seconds = 0;      ///< rank 0's median, from barrier to completion
  double bus_factor = 1;   ///< bytes that a rank sends or receives, as a share of `bytes`
  /// Bytes of the vector a second, and bytes on the way between ranks a second. Source: NCCL's
  /// performance tests.
  [[nodiscard]] double algorithm_bandwidth() const { return static_cast<double>(bytes) / seconds; }
  [[nodiscard]] double bus_bandwidth() const { return bus_factor * algorithm_bandwidth(); }
};

struct MeasureOptions {
  std::vector<std::size_t> bytes = {std::size_t{1} << 20, std::size_t{16} << 20};
  int repetitions = 7;     ///< of which the median counts, after one to warm up
  bool in_regions = true;  ///< measure these
  bool ordinary = true;    ///< and ordinary memory
};

/// Bytes of memory that a rank takes.
std::size_t measure_memory(const MeasureOptions& options);
/// Runs every operation on every size between all ranks of a world of two or more; `on_each` is
/// called on rank 0 with each result as it comes. Sizes are cut to whole floats a rank. Collective.
std::vector<CollectiveSpeed> measure_collectives(
    World& world,
    const MeasureOptions& options,
    const std::function<void(const CollectiveSpeed&)>& on_each = {});

}  // namespace tessera::comm
