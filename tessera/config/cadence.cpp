// SPDX-License-Identifier: Apache-2.0
#include "tessera/config/cadence.h"

#include <cmath>
#include <optional>

#include <fmt/format.h>

namespace tessera::config {
namespace {

constexpr const char* kEpoch = "epoch";

bool is_epoch(const json::Value& value) {
  return value.is_string() && value.as_string() == kEpoch;
}

std::optional<std::int64_t> steps_in(const json::Value& value) {
  return value.is_number() ? value.as_integer() : std::nullopt;
}

/// A share of a run's steps; 0: the value is none.
double share_in(const json::Value& value) {
  const double share = value.is_number() ? value.as_double() : 0.0;
  return share > 0.0 && share < 1.0 ? share : 0.0;
}

}  // namespace

Cadence Cadence::in_run_of(std::int64_t max_steps) const {
  if (share <= 0.0) return *this;
  return {.steps = static_cast<std::int64_t>(std::ceil(static_cast<double>(max_steps) * share))};
}

std::string Cadence::text() const {
  if (epoch) return "every epoch";
  if (share > 0) return fmt::format("every {} of the run", share);
  return steps > 0 ? fmt::format("every {} steps", steps) : "never";
}

Cadence cadence_of(const json::Value& value) {
  if (is_epoch(value)) return {.steps = 0, .epoch = true};
  if (const double share = share_in(value); share > 0) return {.share = share};
  const std::int64_t steps = steps_in(value).value_or(0);
  return {.steps = steps > 0 ? steps : 0, .epoch = false};
}

void check_cadence(const json::Value& value, const std::string& path, Problems& problems) {
  if (value.is_null() || is_epoch(value) || share_in(value) > 0) return;
  const auto steps = steps_in(value);
  if (steps && *steps >= 0) return;
  problems.add(
      value.place,
      path,
      fmt::format("expected {}, found {}",
                  steps ? "at least 0 steps" : "an integer, a share below 1 or \"epoch\"",
                  value.is_number() || value.is_string() ? value.dump() : value.type_name()),
      "set it to a number of steps, or to \"epoch\"");
}

}  // namespace tessera::config
