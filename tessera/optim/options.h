// SPDX-License-Identifier: Apache-2.0
// The sections `optimizer` and `scheduler`.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/config/choices.h"
#include "tessera/config/fields.h"
#include "tessera/config/json.h"
#include "tessera/optim/decay_ramp.h"

namespace tessera::optim {

/// The members of optimizer.gradual_unfreezing.
struct UnfreezingOptions {
  json::Value every;
  std::int64_t layers = 1;
  void describe(config::Fields& fields);
};
struct OptimizerOptions {
  std::string type = "AdamW";
  json::Value params;
  json::Value groups;
  std::vector<std::string> trained;  ///< patterns of tensors' names; empty: all
  DecayRampOptions weight_decay_schedule;
  bool decay_all = false;
  double layer_decay = 1.0;
  UnfreezingOptions gradual_unfreezing;
  void describe(config::Fields& fields);
};
/// The learning-rate curve that a training follows when it resumes with other settings.
enum class OnResume : std::uint8_t { Keep, Restart };
inline constexpr auto kOnResume = std::to_array<config::Named<OnResume>>(
    {{OnResume::Keep, "keep"}, {OnResume::Restart, "restart"}});
struct SchedulerOptions {
  std::string type;  ///< empty: constant
  json::Value params;
  std::optional<OnResume> on_resume;  ///< empty: the curve of these options, from the first step
  void describe(config::Fields& fields);
};

}  // namespace tessera::optim
