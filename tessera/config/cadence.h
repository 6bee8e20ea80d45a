// SPDX-License-Identifier: Apache-2.0
// The intervals at which a training does something besides its steps.
#pragma once

#include <cstdint>
#include <string>

#include "tessera/config/fields.h"
#include "tessera/config/json.h"

namespace tessera::config {

/// Every given number of steps, or a share of all of them, or at the end of every epoch, or never.
struct Cadence {
  std::int64_t steps = 0;  ///< 0: independent of steps
  bool epoch = false;
  double share = 0.0;  ///< between 0 and 1: of the steps of the run; 0: none
  [[nodiscard]] bool any() const { return epoch || steps > 0 || share > 0; }
  /// Returns the interval of a run with that many steps: a share of them, rounded up.
  [[nodiscard]] Cadence in_run_of(std::int64_t max_steps) const;
  /// True if it is due at the step that has just ended.
  [[nodiscard]] bool due(std::int64_t step, bool epoch_ended) const {
    return epoch ? epoch_ended : steps > 0 && step % steps == 0;
  }
  /// "every 10 steps", "every epoch", "every 0.25 of the run", "never".
  [[nodiscard]] std::string text() const;
};

/// The value of a key such as eval.every: a number of steps, a share of them or "epoch"; null and
/// values that check_cadence() rejects mean never.
Cadence cadence_of(const json::Value& value);
/// Reports an invalid value of the key `path`.
void check_cadence(const json::Value& value, const std::string& path, Problems& problems);

}  // namespace tessera::config
