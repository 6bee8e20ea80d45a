// SPDX-License-Identifier: Apache-2.0
// A global batch that grows with the samples consumed: Megatron's --rampup-batch-size.
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
  std::int64_t increment = 1;  ///< added each time
  std::int64_t samples = 1;    ///< consumed in equal parts until the batch is whole
};

/// Pure functions of what was consumed: a resume needs nothing but that number. Samples of an
/// update are those of its batch; an epoch's short last batch is not counted as such.
class BatchRamp {
 public:
  /// Without a ramp.
  explicit BatchRamp(std::int64_t global) : BatchRamp({.start = global}, global) {}
  /// increment must divide global - start.
  BatchRamp(const BatchRampOptions& options, std::int64_t global);

  /// Batch size of the update that begins after `consumed` samples.
  [[nodiscard]] std::int64_t size(std::int64_t consumed) const;
  /// Samples consumed before update k, from 1.
  [[nodiscard]] std::int64_t samples_before(std::int64_t update) const;

 private:
  /// Updates of one size; the last level has no end.
  struct Level {
    std::int64_t first_update, consumed, size;
  };
  /// How many samples must be consumed for so many increments.
  [[nodiscard]] std::int64_t needed(std::int64_t increments) const;

  BatchRampOptions options_;
  std::int64_t global_, increments_;
  std::vector<Level> levels_;
};

/// Reads [start, increment, samples]. Nothing, and the reason in `problems`, where it is not
/// possible: every batch of the ramp must be divisible by `micro_batches` samples, a micro-batch of
/// every data-parallel rank.
std::optional<BatchRamp> read_batch_ramp(const json::Value& value,
                                         std::string_view path,
                                         std::int64_t global,
                                         std::int64_t micro_batches,
                                         config::Problems& problems);

}  // namespace tessera::optim
