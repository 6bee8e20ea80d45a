// SPDX-License-Identifier: Apache-2.0
// The section `trainer`: length of the training, seed, and handling of numerical problems.
#pragma once

#include <cstdint>
#include <optional>

#include "tessera/config/fields.h"
#include "tessera/optim/average.h"
#include "tessera/optim/loss_scale.h"

namespace tessera::optim {

struct TrainerOptions {
  std::optional<std::int64_t> max_steps;
  std::optional<double> epochs;
  std::int64_t seed = 1234;
  OnNonfinite on_nonfinite = OnNonfinite::Stop;
  bool clip_after_warmup = false;
  AverageOptions ema;
  void describe(config::Fields& fields);
};

}  // namespace tessera::optim
