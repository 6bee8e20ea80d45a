// SPDX-License-Identifier: Apache-2.0
// A moving average of the weights (EMA), kept as a state of the optimizer: sharded, saved and
// loaded as the moments are.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "tessera/config/fields.h"
#include "tessera/optim/rule.h"

namespace tessera::optim {

/// `trainer.ema` of the configuration.
struct AverageOptions {
  std::optional<double> decay;  ///< nothing: there is no average
  std::int64_t every = 1, start = 0;
  [[nodiscard]] bool enabled() const { return decay.has_value(); }
  void describe(config::Fields& fields);
};

/// Name of the state: "optimizer.ema.<parameter>" in checkpoints.
inline constexpr std::string_view kAverageState = "ema";

/// `rule`, which also keeps the average: after update t, if t > start and t is a multiple of
/// `every`, average = decay * average + (1 - decay) * weights; up to `start` the average is the
/// weights themselves, and it begins with the weights before the first update. Computed in fp64,
/// rounded to fp32. `rule` is not compressed.
std::unique_ptr<Rule> with_average(std::unique_ptr<Rule> rule, const AverageOptions& options);

}  // namespace tessera::optim
