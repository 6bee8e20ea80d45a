// SPDX-License-Identifier: Apache-2.0
// Improvements and patience, counted by hand.
#include "tessera/engine/eval_history.h"

#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera::engine {
namespace {

using tasks::EvalOptions;
using testing::HasSubstr;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

EvalOptions options_of(const std::string& best) {
  EvalOptions options;
  options.best = json::Value::string(best);
  return options;
}

/// The step after which a training with these values at steps 10, 20, ... ends; 0: none.
std::int64_t stopped_at(const EvalOptions& options, const std::vector<double>& values) {
  EvalHistory history;
  std::int64_t step = 0;
  for (const double value : values) {
    step += 10;
    history.add(step, value, options);
    if (history.why_stop(options)) return step;
  }
  return 0;
}

TEST(EvalHistoryStops, StopAfterANumberOfEvaluationsWithoutAGain) {
  EvalOptions options = options_of("loss");
  options.patience = 2;

  EXPECT_EQ(stopped_at(options, {3, 2, 2.5, 1.5, 1.6, 1.5}), 60);  // equal does not count as a gain
  EXPECT_EQ(stopped_at(options, {3, 2, 2.5, 1.5, 1.6, 1.4}), 0);
  EXPECT_EQ(stopped_at(options, {kNan, kNan}), 20);
  EXPECT_EQ(stopped_at(options, {3, kNan, 2, kNan, kNan}), 50);
  options = options_of("accuracy");
  options.patience = 1;
  EXPECT_EQ(stopped_at(options, {0.1, 0.3, 0.2}), 30);
}

TEST(EvalHistoryStops, StopAfterANumberOfStepsWithoutAGain) {
  EvalOptions options = options_of("loss");
  options.patience_steps = 25;

  EXPECT_EQ(stopped_at(options, {3, 2, 2.5, 2.5, 2.5, 2.5}), 50);  // 30 steps after the gain at 20
  EXPECT_EQ(stopped_at(options, {3, 2, 2.5, 1.5, 1.6, 1.7}), 0);
}

TEST(EvalHistoryStops, CountOnlyGainsOfMoreThanTheLeast) {
  EvalOptions options = options_of("loss");
  options.patience = 2;
  options.min_gain = 0.25;

  EXPECT_EQ(stopped_at(options, {3, 2.75, 2.5}), 30);
  EXPECT_EQ(stopped_at(options, {3, 2.875, 2.5, 2.375, 2.25}), 50);
  EvalHistory history;
  for (const auto& [step, value] : {std::pair(1, 3.0), std::pair(2, 2.9)})
    history.add(step, value, options);
  EXPECT_EQ(history.best()->step, 2);  // the best one nevertheless
}

TEST(EvalHistoryStops, SurviveACheckpoint) {
  EvalOptions options = options_of("loss");
  options.patience = 3;
  options.patience_steps = 1000;
  const std::vector<double> values = {3, 2, 2.5, 2.25, 2.125};
  for (std::size_t cut = 1; cut < values.size(); ++cut) {
    SCOPED_TRACE(cut);
    EvalHistory history;
    std::int64_t step = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (i == cut) {
        const std::string text = history.state(options).dump();
        history = EvalHistory::from(json::parse_strict(text, "manifest.json"), options);
      }
      EXPECT_FALSE(history.why_stop(options));
      history.add(step += 10, values[i], options);
    }
    EXPECT_THAT(history.why_stop(options).value_or(""),
                HasSubstr("stopped early at step 50: 3 evaluations without a gain of loss; the "
                          "best, 2.0000, was at step 20"));
  }
}

TEST(EvalHistoryStops, OfAnotherMetricStartAgain) {
  EvalOptions loss = options_of("loss"), accuracy = options_of("accuracy");
  loss.patience = accuracy.patience = 1;
  EvalHistory history;
  history.add(10, 2.0, loss);
  history.add(20, 2.0, loss);
  const json::Value state = history.state(loss);

  EXPECT_TRUE(EvalHistory::from(state, loss).why_stop(loss));
  EXPECT_FALSE(EvalHistory::from(state, accuracy).why_stop(accuracy));
  EXPECT_FALSE(EvalHistory::from(state, accuracy).best());
  EXPECT_FALSE(EvalHistory::from(json::Value::integer(3), loss).best());
}

TEST(BestEvaluations, AreReadFromCheckpointsThatNameNoMetric) {
  const json::Value old = json::parse_strict(R"({"step": 7, "loss": 1.5})", "manifest.json");

  const auto best = best_from(old, options_of("loss").rule());
  ASSERT_TRUE(best);
  EXPECT_EQ(best->step, 7);
  EXPECT_EQ(best->value, 1.5);
  EXPECT_FALSE(best_from(old, options_of("accuracy").rule()));
}

TEST(BestEvaluations, AreOfAMetricThatEvaluationsHave) {
  EvalReport report;
  report.loss = 2.0;
  report.metrics = {{"loss", 2.0, 1}, {"accuracy", 0.5, 1}};

  EXPECT_EQ(value_of(report, options_of("loss").rule()), 2.0);
  EXPECT_EQ(value_of(report, options_of("accuracy").rule()), 0.5);
  try {
    value_of(report, options_of("acuracy").rule());
    ADD_FAILURE() << "not refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::Config);
    EXPECT_THAT(error.text(), HasSubstr("did you mean \"accuracy\"?"));
  }
}

}  // namespace
}  // namespace tessera::engine
