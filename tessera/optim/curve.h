// SPDX-License-Identifier: Apache-2.0
// The parts that the families of schedules share: a schedule that is a single function, and checks
// of lengths.
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

/// A schedule that is a function of t = update - 1, the number of the library's steps so far.
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

/// Returns n as a divisor; unknown totals are 0 and become 1.
double at_least_one(std::int64_t n);
/// Returns 1 at 0, 0 at 1, and rises again after that.
double half_cosine(double way);

/// Checks that a total that the user wrote comes after the warm-up, for schedules whose library
/// computes no rate otherwise. A total taken from the length of the run need not: a short trial run
/// may end within its warm-up, and its rates are those of the full run.
void check_warmup(std::int64_t warmup_steps,
                  std::int64_t total,
                  std::string_view key_of_total,
                  const json::Value& params,
                  config::Problems& problems);
/// Checks that a decay of `tail_steps` at the end does not begin within the warm-up.
void check_tail(std::int64_t warmup_steps,
                std::int64_t tail_steps,
                std::int64_t total,
                std::string_view key_of_tail,
                const json::Value& params,
                config::Problems& problems);

}  // namespace tessera::optim
