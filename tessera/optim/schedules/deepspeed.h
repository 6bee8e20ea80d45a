// SPDX-License-Identifier: Apache-2.0
// The parameter that all of DeepSpeed's schedules have.
#pragma once

#include <cstdint>

#include "tessera/config/fields.h"
#include "tessera/config/json.h"

namespace tessera::optim {

/// last_batch_iteration: only -1, the beginning, is possible, because a resume is determined by the
/// update's number.
struct DeepSpeedStart {
  std::int64_t last_batch_iteration = -1;

  void describe(config::Fields& f);
  /// Reports any other value as a problem.
  void check(const json::Value& params, config::Problems& problems) const;
};

}  // namespace tessera::optim
