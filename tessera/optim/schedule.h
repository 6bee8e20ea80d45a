// SPDX-License-Identifier: Apache-2.0
// Learning-rate schedules: pure functions of the update's number.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>

#include "tessera/base/registry.h"
#include "tessera/config/fields.h"
#include "tessera/config/json.h"

namespace tessera::optim {

class Schedule {
 public:
  virtual ~Schedule() = default;
  /// Returns the rate of update k (from 1). This is schedule index k - 1: the rate of the library
  /// right after construction for k = 1, and after its (k-1)-th scheduler.step() otherwise.
  [[nodiscard]] virtual double lr(std::int64_t update) const = 0;
  /// Returns the warm-up steps, for `trainer.clip_after_warmup`; 0 if there is no warm-up.
  [[nodiscard]] virtual std::int64_t warmup_steps() const { return 0; }
  /// Values used instead of the optimizer's betas[0] (or momentum) and betas[1], if the schedule
  /// changes them.
  [[nodiscard]] virtual std::optional<double> beta1(std::int64_t /*update*/) const { return {}; }
  [[nodiscard]] virtual std::optional<double> beta2(std::int64_t /*update*/) const { return {}; }
};

/// The facts that a schedule may need besides its own parameters.
struct ScheduleContext {
  double base_lr = 0.0;        ///< base rate of the optimizer
  bool has_betas = true;       ///< Rule::has_betas() of the optimizer
  std::int64_t max_steps = 0;  ///< length of the run; 0 if unknown
  /// Returns the samples consumed before update k (from 1), for schedules that count in samples;
  /// empty if unknown.
  std::function<std::int64_t(std::int64_t update)> samples_before = {};
};
using ScheduleFactory = std::function<std::unique_ptr<Schedule>(const json::Value& params,
                                                                const ScheduleContext& context,
                                                                config::Problems& problems,
                                                                config::Origins& origins)>;
Registry<ScheduleFactory>& schedules();
/// Returns the factory of a scheduler.type; an empty type is "constant". Throws Error{Unsupported}
/// for a schedule that is not a function of the update's number, Error{Config} with the nearest
/// name for an unknown one.
ScheduleFactory schedule_factory(std::string_view type);
#define TESSERA_LR_SCHEDULE(name, factory) \
  static const bool tessera_schedule_##factory = ::tessera::optim::schedules().add(name, factory)

}  // namespace tessera::optim
