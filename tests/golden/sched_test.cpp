// SPDX-License-Identifier: Apache-2.0
// Our learning-rate schedules against the curves of DeepSpeed's and Hugging Face's own classes.
#include <cmath>
#include <memory>
#include <optional>
#include <string>

#include "golden.h"
#include <gtest/gtest.h>

#include "tessera/optim/schedule.h"

namespace tessera {
namespace {

// Both sides are float64; only the order of operations differs.
constexpr double kTolerance = 1e-12;

/// Hugging Face calls every schedule with the length of the training; this one does not use it and
/// ours does not take it.
bool takes(const std::string& scheduler, const std::string& key) {
  return !(scheduler == "constant_with_warmup" && key == "num_training_steps");
}

/// Nothing where the schedule, or the system that it is named after, is not one of ours.
std::unique_ptr<optim::Schedule> schedule_of(const json::Value& record) {
  const std::string source = golden::at(record, "source").as_string();
  const std::string name = golden::at(record, "scheduler").as_string();
  if ((source != "DeepSpeed" && source != "transformers") || !optim::schedules().has(name))
    return nullptr;
  optim::ScheduleContext context;
  json::Value params = json::Value::object();
  for (const auto& [key, value] : golden::at(record, "params").members()) {
    if (key == "base_lr") {
      context.base_lr = value.as_double();
    } else if (takes(name, key)) {
      params[key] = value;
    }
  }
  config::Problems problems;
  config::Origins origins;
  auto schedule = optim::schedule_factory(name)(params, context, problems, origins);
  problems.raise();
  return schedule;
}

TEST(GoldenSched, CurvesFollowTheRecordedOnes) {
  int compared = 0;

  for (const auto& path : golden::cases("sched")) {
    const json::Value record = golden::read_json(path);
    const auto schedule = schedule_of(record);
    if (schedule == nullptr) continue;
    SCOPED_TRACE(path.filename().string());
    std::vector<double> expected = {golden::at(record, "initial").as_double()};
    golden::append_numbers(golden::at(record, "after_step"), expected);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const double lr = schedule->lr(static_cast<std::int64_t>(i) + 1);
      EXPECT_NEAR(lr, expected[i], kTolerance * std::abs(expected[i])) << "update " << i + 1;
    }
    ++compared;
  }

  EXPECT_GT(compared, 0);
}

}  // namespace
}  // namespace tessera
