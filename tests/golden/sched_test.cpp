// SPDX-License-Identifier: Apache-2.0
// Our learning-rate schedules against the curves of the classes that they are named after. Every
// case is run: one whose schedule or parameters we do not know fails.
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "golden.h"
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/optim/schedule.h"

namespace tessera {
namespace {

// Both sides are float64; only the order of operations differs.
constexpr double kTolerance = 1e-12;

std::unique_ptr<optim::Schedule> schedule_of(const json::Value& record) {
  optim::ScheduleContext context;
  json::Value params = json::Value::object();
  for (const auto& [key, value] : golden::at(record, "params").members()) {
    // The optimizer's, not the schedule's.
    if (key == "base_lr") {
      context.base_lr = value.as_double();
    } else {
      params[key] = value;
    }
  }
  config::Problems problems;
  config::Origins origins;
  auto schedule = optim::schedule_factory(golden::at(record, "scheduler").as_string())(
      params, context, problems, origins);
  problems.raise();
  return schedule;
}

/// The value for update 1, then those for all later updates.
std::vector<double> values(const json::Value& record, const std::string& suffix) {
  std::vector<double> out = {golden::at(record, "initial" + suffix).as_double()};
  golden::append_numbers(golden::at(record, "after_step" + suffix), out);
  return out;
}

void expect_near(double value, double expected, std::size_t index) {
  EXPECT_NEAR(value, expected, kTolerance * std::abs(expected)) << "update " << index + 1;
}

void compare(const json::Value& record) {
  const auto schedule = schedule_of(record);
  const std::vector<double> rates = values(record, "");
  for (std::size_t i = 0; i < rates.size(); ++i)
    expect_near(schedule->lr(static_cast<std::int64_t>(i) + 1), rates[i], i);
  if (record.find("initial_beta1") == nullptr) return;
  const std::vector<double> betas = values(record, "_beta1");
  for (std::size_t i = 0; i < betas.size(); ++i) {
    const auto beta1 = schedule->beta1(static_cast<std::int64_t>(i) + 1);
    ASSERT_TRUE(beta1.has_value());
    expect_near(*beta1, betas[i], i);
  }
}

TEST(GoldenSched, CurvesFollowTheRecordedOnes) {
  for (const auto& path : golden::cases("sched")) {
    SCOPED_TRACE(path.filename().string());
    try {
      compare(golden::read_json(path));
    } catch (const Error& error) {
      ADD_FAILURE() << error.text();
    }
  }
}

}  // namespace
}  // namespace tessera
