// SPDX-License-Identifier: Apache-2.0
// A global batch size that grows with the samples consumed: Megatron's --rampup-batch-size and
// --step-batch-size-schedule.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "tessera/config/fields.h"
#include "tessera/config/json.h"

namespace tessera::optim {

struct BatchRampOptions {
  std::int64_t start = 0;      ///< batch size of the first update
  std::int64_t increment = 1;  ///< added at each increase
  std::int64_t samples = 1;    ///< samples over which the batch size grows, in equal parts
};

/// A batch size that is valid from a number of consumed samples on.
struct BatchStep {
  std::int64_t consumed = 0, size = 1;
};

/// The batch size as a pure function of the samples consumed, so that a resume needs only that
/// number. The samples of an update are those of its full batch; a short last batch of an epoch is
/// not treated separately.
class BatchRamp {
 public:
  /// A constant batch size.
  explicit BatchRamp(std::int64_t global) : BatchRamp({.start = global}, global) {}
  /// increment must divide global - start.
  BatchRamp(const BatchRampOptions& options, std::int64_t global);
  /// Batch sizes by consumed samples; the first step begins at 0, and later ones after more samples
  /// than the one before. Sizes are at least 1.
  explicit BatchRamp(std::vector<BatchStep> steps);

  /// Returns the batch size of the update that begins after `consumed` samples.
  [[nodiscard]] std::int64_t size(std::int64_t consumed) const;
  /// Returns the samples consumed before update k, counted from 1.
  [[nodiscard]] std::int64_t samples_before(std::int64_t update) const;

 private:
  /// Consecutive updates of equal size; the last level has no end.
  struct Level {
    std::int64_t first_update, consumed, size;
  };
  std::vector<BatchStep> steps_;
  std::vector<Level> levels_;
};

/// Reads [start, increment, samples], or steps as a list of [samples, size], the last of which has
/// the size `global`. Returns nothing, and the reason in `problems`, if it is not possible: every
/// batch size must be divisible by `micro_batches` samples, one micro-batch of every data-parallel
/// rank.
std::optional<BatchRamp> read_batch_ramp(const json::Value& value,
                                         std::string_view path,
                                         std::int64_t global,
                                         std::int64_t micro_batches,
                                         config::Problems& problems);

}  // namespace tessera::optim
