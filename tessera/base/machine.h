// SPDX-License-Identifier: Apache-2.0
// The speeds of a machine, measured or described, from which costs follow. Nothing here is measured
// by itself: docs/adding/cost.md says who fills in a Machine.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "tessera/base/dtype.h"

namespace tessera {

/// A channel for bytes.
struct Rate {
  double latency_s = 0;    ///< of each message or access, however small
  double bytes_per_s = 0;  ///< 0: unlimited
  /// Seconds for `bytes` in `messages` that follow each other.
  [[nodiscard]] double seconds(double bytes, double messages = 1) const {
    return latency_s * messages + (bytes_per_s > 0 ? bytes / bytes_per_s : 0);
  }
};

/// Groups of operations whose speed differs on a machine for the same arithmetic or memory traffic.
enum class ShapeClass : std::uint8_t {
  LargeProduct,  ///< a product with many rows, columns and terms
  TallProduct,   ///< a product with many rows and few columns or terms
  FewRows,       ///< a product of few rows, which reads a weight for little arithmetic: decoding
  Grouped,       ///< many small products in one call: experts
  Attention,
  Rows,         ///< norms, losses and lookups: one pass over rows
  Elementwise,  ///< activations, dropout, sums
  Update        ///< of the optimizer
};
inline constexpr int kNumShapeClasses = 8;
/// "large product", ...
std::string_view name(ShapeClass shape) noexcept;

/// One rank's share of a machine.
struct Machine {
  std::string name;
  Rate memory;  ///< of one rank's kernels
  /// FLOPs per second; a pair that is absent is limited by memory alone.
  std::map<std::pair<ShapeClass, DType>, double> flops_per_s;
  double op_overhead_s = 0;  ///< of starting one operation
  Rate in_host;              ///< from the memory of another rank of the host
  Rate between_hosts;        ///< from one rank to one of another host
  int host_ranks = 0;        ///< ranks on each host; 0: all ranks on one host
  /// The storage tiers besides memory, by name: the rates of reads and of writes.
  std::map<std::string, std::pair<Rate, Rate>> tiers;
};

}  // namespace tessera
