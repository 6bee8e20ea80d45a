// SPDX-License-Identifier: Apache-2.0
#include "tessera/config/cadence.h"

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

}  // namespace

std::string Cadence::text() const {
  if (epoch) return "every epoch";
  return steps > 0 ? fmt::format("every {} steps", steps) : "never";
}

Cadence cadence_of(const json::Value& value) {
  if (is_epoch(value)) return {.steps = 0, .epoch = true};
  const std::int64_t steps = steps_in(value).value_or(0);
  return {.steps = steps > 0 ? steps : 0, .epoch = false};
}

void check_cadence(const json::Value& value, const std::string& path, Problems& problems) {
  if (value.is_null() || is_epoch(value)) return;
  const auto steps = steps_in(value);
  if (steps && *steps >= 0) return;
  problems.add(
      value.place,
      path,
      fmt::format("expected {}, found {}",
                  steps ? "at least 0 steps" : "an integer or \"epoch\"",
                  value.is_number() || value.is_string() ? value.dump() : value.type_name()),
      "set it to a number of steps, or to \"epoch\"");
}

}  // namespace tessera::config
