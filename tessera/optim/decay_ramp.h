// SPDX-License-Identifier: Apache-2.0
// Weight decay that changes over the updates: Megatron's --weight-decay-incr-style.
#pragma once

#include <cstdint>
#include <optional>

#include "tessera/config/fields.h"
#include "tessera/config/json.h"

namespace tessera::optim {

struct DecayRampOptions {
  enum class Style : std::uint8_t { Constant, Linear, Cosine };
  Style style = Style::Constant;
  std::optional<double> start, end;   ///< unset: the optimizer's weight decay
  std::optional<std::int64_t> steps;  ///< unset: the length of the run
  void describe(config::Fields& fields);
};

/// The weight decay as a pure function of the update's number. The style Constant keeps the
/// optimizer's value.
class DecayRamp {
 public:
  DecayRamp() = default;
  /// `weight_decay` is the optimizer's; `max_steps` is that of the run, 0 if unknown.
  DecayRamp(const DecayRampOptions& options, double weight_decay, std::int64_t max_steps);

  /// Returns the weight decay of update k, counted from 1: `start` for the first, `end` from update
  /// steps + 1 on.
  [[nodiscard]] double weight_decay(std::int64_t update) const;
  /// Returns the factor on the optimizer's weight decay at update k.
  [[nodiscard]] double factor(std::int64_t update) const;

 private:
  DecayRampOptions::Style style_ = DecayRampOptions::Style::Constant;
  double base_ = 0.0, start_ = 0.0, end_ = 0.0;
  std::int64_t steps_ = 0;
};

/// Reports options that do not fit the optimizer's weight decay, as problems at `place` with paths
/// relative to the options.
void check_decay_ramp(const DecayRampOptions& options,
                      double weight_decay,
                      const json::Place& place,
                      config::Problems& problems);

}  // namespace tessera::optim
