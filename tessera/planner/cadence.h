// SPDX-License-Identifier: Apache-2.0
// How often a training does something beside its steps.
#pragma once

#include <cstdint>
#include <string>

#include "tessera/config/fields.h"
#include "tessera/config/json.h"

namespace tessera::planner {

/// Every so many steps, or at the end of every epoch, or never.
struct Cadence {
  std::int64_t steps = 0;  ///< 0: not by steps
  bool epoch = false;
  [[nodiscard]] bool any() const { return epoch || steps > 0; }
  /// Whether the step that has just ended is one of them.
  [[nodiscard]] bool due(std::int64_t step, bool epoch_ended) const {
    return epoch ? epoch_ended : steps > 0 && step % steps == 0;
  }
  /// "every 10 steps", "every epoch", "never".
  [[nodiscard]] std::string text() const;
};

/// The value of a key such as eval.every: a number of steps or "epoch"; null and what
/// check_cadence() refuses are never.
Cadence cadence_of(const json::Value& value);
/// Tells what is wrong with the value of the key `path`.
void check_cadence(const json::Value& value, const std::string& path, config::Problems& problems);

}  // namespace tessera::planner
