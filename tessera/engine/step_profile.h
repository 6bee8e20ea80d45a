// SPDX-License-Identifier: Apache-2.0
// The time of a training step, operation by operation, compared with what the machine allows: a
// roofline. Source: Williams, Waterman and Patterson 2009.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/engine/engine.h"
#include "tessera/ops/op_log.h"

namespace tessera::planner {
class Plan;
}

namespace tessera::engine {

/// The machine's peak rates: floating-point operations of products in the working dtype, and bytes
/// of memory, per second.
struct PeakRates {
  double flops = 0, bytes = 0;
  /// The minimum time of an operation in seconds.
  [[nodiscard]] double seconds(double its_flops, double its_bytes) const;
  /// True if an operation is bound by arithmetic, not by memory.
  [[nodiscard]] bool bound_by_flops(double its_flops, double its_bytes) const;
};
/// Measures the rates in about a second, with this rank's threads.
PeakRates measure_peak_rates(DType working);

/// The profile of the measuring rank, over all measured steps.
struct StepProfile {
  std::int64_t steps = 0;
  double seconds = 0;       ///< total of these steps: operations, collectives and the rest
  double collectives = 0;   ///< waits and copies between ranks
  std::int64_t tokens = 0;  ///< tokens of all ranks
  std::vector<ops::OpRow> operations;  ///< sorted by time, longest first
  PeakRates peak;

  [[nodiscard]] double in_operations() const;
  /// Time between operations: executor, autograd, allocation, data.
  [[nodiscard]] double rest() const;
  /// The floor of the step: the time of its products of matrices alone, at the machine's rate.
  [[nodiscard]] double least_seconds_of_products() const;
  /// Minimum time of all operations if each ran at the machine's peak rates.
  [[nodiscard]] double least_seconds() const;
};

/// Trains `warmup` steps, then `steps` with a log of this rank's operations. Returns nothing if a
/// signal stopped the ranks meanwhile (ControlPage::stop_requested). Collective.
std::optional<StepProfile> profile_steps(Engine& engine, std::int64_t warmup, std::int64_t steps);

/// Formats a page of at most 120 columns. Operations that take less than a thousandth of the step
/// share one line, unless `all`.
std::string roofline_page(const StepProfile& profile, const planner::Plan& plan, bool all);

}  // namespace tessera::engine
