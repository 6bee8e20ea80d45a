// SPDX-License-Identifier: Apache-2.0
#include "tessera/optim/curve.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include <fmt/format.h>

#include "tessera/optim/params.h"

namespace tessera::optim {

double at_least_one(std::int64_t n) {
  return static_cast<double>(std::max<std::int64_t>(1, n));
}

double half_cosine(double way) {
  return 0.5 * (1.0 + std::cos(std::numbers::pi * way));
}

void check_warmup(std::int64_t warmup_steps,
                  std::int64_t total,
                  std::string_view key_of_total,
                  const json::Value& params,
                  config::Problems& problems) {
  if (!is_given(params, key_of_total) || total == 0 || warmup_steps < total) return;
  problems.add(
      place_of(params, key_of_total),
      std::string(key_of_total),
      fmt::format(
          "the warm-up of {} steps does not end before the schedule of {}", warmup_steps, total),
      "lower the warm-up or raise the total");
}

void check_tail(std::int64_t warmup_steps,
                std::int64_t tail_steps,
                std::int64_t total,
                std::string_view key_of_tail,
                const json::Value& params,
                config::Problems& problems) {
  // A total within the warm-up is reported by check_warmup(), or is a short trial run.
  if (total <= warmup_steps || warmup_steps + tail_steps <= total) return;
  problems.add(
      place_of(params, key_of_tail),
      std::string(key_of_tail),
      fmt::format(
          "a warm-up of {} and a decay of {} do not fit into {}", warmup_steps, tail_steps, total),
      "lower one of the two or raise the total");
}

}  // namespace tessera::optim
