// SPDX-License-Identifier: Apache-2.0
// What all of DeepSpeed's schedules take.
#pragma once

#include <cstdint>

#include "tessera/config/fields.h"
#include "tessera/config/json.h"

namespace tessera::optim {

/// last_batch_iteration: -1, the beginning. A resume finds its place by the update's number.
struct DeepSpeedStart {
  std::int64_t last_batch_iteration = -1;

  void describe(config::Fields& f);
  /// Any other value is a problem.
  void check(const json::Value& params, config::Problems& problems) const;
};

}  // namespace tessera::optim
