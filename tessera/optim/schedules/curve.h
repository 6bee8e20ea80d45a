// SPDX-License-Identifier: Apache-2.0
// What the families of schedules share: a schedule that is one function, and the checks of lengths.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "tessera/config/fields.h"
#include "tessera/config/json.h"
#include "tessera/optim/params.h"
#include "tessera/optim/schedule.h"

namespace tessera::optim {

/// A schedule that is one function of t = update - 1, the number of the library's steps so far.
class Curve final : public Schedule {
 public:
  using Rate = std::function<double(std::int64_t t)>;
  Curve(std::int64_t warmup_steps, Rate rate) : warmup_(warmup_steps), rate_(std::move(rate)) {}

  [[nodiscard]] std::int64_t warmup_steps() const override { return warmup_; }
  [[nodiscard]] double lr(std::int64_t update) const override { return rate_(update - 1); }

 private:
  std::int64_t warmup_;
  Rate rate_;
};

/// A divisor: totals that are not known yet are 0.
double at_least_one(std::int64_t n);
/// 1 at 0, 0 at 1, and up again after that.
double half_cosine(double way);

/// A total that the user wrote must come after the warm-up. One that is taken from the run's length
/// may not: a quick try ends within its warm-up, and its rates are those of the long run.
void check_warmup(std::int64_t warmup_steps,
                  std::int64_t total,
                  std::string_view key_of_total,
                  const json::Value& params,
                  config::Problems& problems);
/// A decay of so many steps at the end must not begin within the warm-up.
void check_tail(std::int64_t warmup_steps,
                std::int64_t tail_steps,
                std::int64_t total,
                std::string_view key_of_tail,
                const json::Value& params,
                config::Problems& problems);

}  // namespace tessera::optim
