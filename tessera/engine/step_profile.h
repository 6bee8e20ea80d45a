// SPDX-License-Identifier: Apache-2.0
// Where the time of a training step goes, operation by operation, and what the machine would allow:
// a roofline. Source: Williams, Waterman and Patterson 2009.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/engine/engine.h"
#include "tessera/ops/op_log.h"

namespace tessera::engine {

/// What the machine gives at most: products in the working dtype, and bytes of memory, a second.
struct Roof {
  double flops = 0, bytes = 0;
  /// Seconds that an operation needs at least.
  [[nodiscard]] double seconds(double its_flops, double its_bytes) const;
  /// Whether arithmetic, not memory, is what bounds it.
  [[nodiscard]] bool bound_by_flops(double its_flops, double its_bytes) const;
};
/// Measured in about a second, with this rank's threads.
Roof measure_roof(DType working);

/// Of the rank that measured, over all measured steps.
struct StepProfile {
  std::int64_t steps = 0;
  double seconds = 0;       ///< of these steps; operations, collectives and the rest are all of it
  double collectives = 0;   ///< waits and copies between ranks
  std::int64_t tokens = 0;  ///< of all ranks
  std::vector<ops::OpRow> operations;  ///< the longest first
  Roof roof;

  [[nodiscard]] double in_operations() const;
  /// Between operations: the executor, autograd, allocation, data.
  [[nodiscard]] double rest() const;
  /// Of all operations, if each ran as fast as the machine allows.
  [[nodiscard]] double least_seconds() const;
};

/// Trains `warmup` steps, then `steps` with a log of this rank's operations; nothing where a signal
/// stopped the ranks meanwhile (ControlPage::stop_requested). Collective.
std::optional<StepProfile> profile_steps(Engine& engine, std::int64_t warmup, std::int64_t steps);

/// A page of at most 120 columns. Operations under a thousandth of the step are one line, unless
/// `all`.
std::string roofline_page(const StepProfile& profile, const planner::Plan& plan, bool all);

}  // namespace tessera::engine
