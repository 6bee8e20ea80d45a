// SPDX-License-Identifier: Apache-2.0
// The length of a training and the progress in it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tessera/config/json.h"

namespace tessera::planner {

/// A learning-rate curve that a resumed training follows instead of that of its own options.
struct Curve {
  std::string type;  ///< as scheduler.type and .params
  json::Value params;
  std::int64_t start = 0;   ///< the step after which the curve begins
  std::int64_t length = 0;  ///< steps of the curve, which a schedule takes for trainer.max_steps
};

/// The length of a training, which is known once its data is open.
struct Course {
  std::int64_t max_steps = 0;
  std::optional<Curve> curve;  ///< by scheduler.on_resume, once the checkpoint is known
};

/// The progress of a training.
struct Position {
  std::int64_t step = 0, samples = 0;
};

}  // namespace tessera::planner
