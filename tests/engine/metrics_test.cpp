// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/metrics.h"

#include <cmath>
#include <string>

#include <gtest/gtest.h>

#include "tessera/base/files.h"
#include "tessera/base/text.h"
#include "tessera/report/plot.h"

namespace tessera::engine {
namespace {

StepReport report_of(std::int64_t step, double loss) {
  StepReport report;
  report.step = step;
  report.loss = loss;
  report.seconds = 0.5;
  report.batch_tokens = 100;
  return report;
}

TEST(MetricsFile, HasEveryFieldThatScriptsRelyOn) {
  const files::TempDir dir;
  const auto path = dir.path() / "metrics.jsonl";

  MetricsFile(path, 0).write(report_of(1, 2.5), false);

  const json::Value line = json::parse_strict(files::read(path), "metrics.jsonl");
  for (const char* key : {"step",
                          "epoch",
                          "loss",
                          "lr",
                          "grad_norm",
                          "tokens",
                          "tokens_per_s",
                          "step_ms",
                          "mem_peak_bytes",
                          "skipped"}) {
    EXPECT_NE(line.find(key), nullptr) << key;
  }
  EXPECT_EQ(line.find("tokens_per_s")->as_double(), 200.0);
  EXPECT_EQ(line.find("step_ms")->as_double(), 500.0);
}

TEST(MetricsFile, TellsPaddingAndTheShareOfTheMatrixRateWhereTheyAreKnown) {
  const files::TempDir dir;
  const auto path = dir.path() / "metrics.jsonl";
  StepReport report = report_of(1, 2.5);
  report.padding_tokens = 300;
  report.matrix_share = 0.61;

  MetricsFile(path, 0).write(report, false);
  MetricsFile(path, 1).write(report_of(2, 2.5), false);

  const std::string text = files::read(path);
  const json::Value line = json::parse_strict(text.substr(0, text.find('\n')), "m");
  EXPECT_EQ(line.find("tokens_per_s")->as_double(), 200.0) << "of 100 tokens in half a second";
  EXPECT_EQ(line.find("padding_share")->as_double(), 0.75);
  EXPECT_EQ(line.find("matrix_share")->as_double(), 0.61);
  const json::Value other = json::parse_strict(text.substr(text.find('\n') + 1), "m");
  EXPECT_EQ(other.find("padding_share"), nullptr);
  EXPECT_EQ(other.find("matrix_share"), nullptr);
  EXPECT_NE(step_line(report, 10, 0).find("200 tok/s (padding 75%)"), std::string::npos)
      << step_line(report, 10, 0);
  EXPECT_EQ(step_line(report_of(2, 2.5), 10, 0).find("padding"), std::string::npos);
}

TEST(MetricsFile, HasTheLossScaleWhereThereIsOne) {
  const files::TempDir dir;
  const auto path = dir.path() / "metrics.jsonl";
  StepReport report = report_of(1, 2.5);
  report.loss_scale = 65536.0;

  MetricsFile(path, 0).write(report, false);

  EXPECT_EQ(json::parse_strict(files::read(path), "m").find("loss_scale")->as_double(), 65536.0);
}

TEST(MetricsFile, HasTheTermsOfALossThatHasSeveral) {
  const files::TempDir dir;
  const auto path = dir.path() / "metrics.jsonl";
  StepReport report = report_of(1, 2.5);
  report.metrics = {{"loss", 2.0, 10}, {"accuracy", 0.25, 10}};

  MetricsFile(path, 0).write(report, false);
  EXPECT_EQ(json::parse_strict(files::read(path), "m").find("terms")->find("accuracy")->as_double(),
            0.25);
  EXPECT_NE(step_line(report, 9, 0).find("| loss 2.5000 | accuracy 0.2500 | lr"),
            std::string::npos);

  files::write_atomic(path, "");
  MetricsFile(path, 0).write(3, EvalReport{1.5, 10, {{"loss", 1.5, 10}, {"accuracy", 0.75, 10}}});
  EXPECT_EQ(
      json::parse_strict(files::read(path), "m").find("eval_terms")->find("accuracy")->as_double(),
      0.75);

  report.metrics = {{"loss", 2.5, 10}};
  files::write_atomic(path, "");
  MetricsFile(path, 0).write(report, false);
  EXPECT_EQ(json::parse_strict(files::read(path), "m").find("terms"), nullptr);
}

TEST(Metrics, OfStepsWithADiskHaveWhatTravelledAndTheWait) {
  StepReport report;
  report.seconds = 2.0;
  EXPECT_EQ(step_values(report, false, 0).find("disk_ms"), nullptr);
  EXPECT_EQ(step_line(report, 9, 0).find("disk"), std::string::npos);

  report.disk = {.read_bytes = 3 << 20, .written_bytes = 1 << 20, .waited_s = 0.5};

  EXPECT_NE(step_line(report, 9, 0).find(" disk 25% (4.0 MiB)"), std::string::npos);
  const json::Value line = step_values(report, false, 0);
  EXPECT_EQ(line.find("disk_ms")->as_double(), 500);
  EXPECT_EQ(line.find("disk_read_bytes")->as_integer(), 3 << 20);
  EXPECT_EQ(line.find("disk_written_bytes")->as_integer(), 1 << 20);
}

TEST(Metrics, OfStepsWithEarlyUpdatesCountThem) {
  StepReport report;
  report.seconds = 2.0;
  EXPECT_EQ(step_values(report, false, 0).find("early_updates"), nullptr);

  report.early = {.committed = 5, .repeated = 0};

  EXPECT_EQ(step_values(report, false, 0).find("early_updates")->as_integer(), 5);
  EXPECT_EQ(step_values(report, false, 0).find("early_repeats")->as_integer(), 0);
}

TEST(MetricsFile, HasTheSpeedOfGenerationApart) {
  const files::TempDir dir;
  const auto path = dir.path() / "metrics.jsonl";
  StepReport report = report_of(1, 2.5);
  EXPECT_EQ(step_line(report, 9, 0).find("generated"), std::string::npos);
  report.generated_tokens = 60;
  report.generate_s = 0.25;

  MetricsFile(path, 0).write(report, false);

  const json::Value line = json::parse_strict(files::read(path), "m");
  EXPECT_EQ(line.find("generated_tokens_per_s")->as_double(), 240.0);
  EXPECT_EQ(line.find("tokens_per_s")->as_double(), 200.0);
  EXPECT_NE(step_line(report, 9, 0).find("| 240 generated tok/s"), std::string::npos);
}

TEST(MetricsFile, HasTheMedianSpeedOfItsSteps) {
  const files::TempDir dir;
  const auto path = dir.path() / "metrics.jsonl";
  EXPECT_EQ(median_speed(path).seconds, 0.0);
  MetricsFile file(path, 0);
  // A slow first step, and a last one that does more than others.
  for (const double seconds : {20.0, 0.5, 0.5, 0.5, 4.0}) {
    StepReport report = report_of(1, 2.5);
    report.seconds = seconds;
    report.batch_tokens = 100;
    file.write(report, false);
  }
  file.write(4, EvalReport{1.5, 10});

  EXPECT_EQ(median_speed(path).seconds, 0.5);
  EXPECT_EQ(median_speed(path).tokens_per_s, 200.0);
}

TEST(MetricsFile, CutsTheStepsPastTheCheckpointAndATornLine) {
  const files::TempDir dir;
  const auto path = dir.path() / "metrics.jsonl";
  {
    MetricsFile file(path, 0);
    for (std::int64_t step = 1; step <= 5; ++step)
      file.write(report_of(step, 1.0), false);
    file.write(4, EvalReport{1.5, 10});
  }
  files::write_atomic(path, files::read(path) + "{\"step\":6,\"lo");

  MetricsFile(path, 3).write(report_of(4, 2.0), false);

  const report::LossHistory history = read_losses(path);
  ASSERT_EQ(history.train.size(), 4U);
  EXPECT_EQ(history.train.back().value, 2.0);
  EXPECT_TRUE(history.eval.empty());
}

TEST(MetricsFile, KnowsTheLastStepWhoseLossWasNoNumber) {
  const files::TempDir dir;
  const auto path = dir.path() / "metrics.jsonl";
  {
    MetricsFile file(path, 0);
    file.write(report_of(1, 2.0), false);
    file.write(report_of(2, std::nan("")), false);
  }

  const report::LossHistory history = read_losses(path);

  EXPECT_EQ(history.train.size(), 1U);
  EXPECT_EQ(history.last_step, 2);
}

TEST(MetricsFile, NumbersReadBackToTheSameDouble) {
  const files::TempDir dir;
  const auto path = dir.path() / "metrics.jsonl";
  const double awkward = 0.1 + 0.2;

  MetricsFile(path, 0).write(report_of(1, awkward), false);

  EXPECT_EQ(read_losses(path).train.at(0).value, awkward);
}

TEST(LossPlot, DrawsBothCurvesAndSurvivesInfinity) {
  report::LossHistory history;
  for (int step = 1; step <= 100; ++step)
    history.train.push_back({step, 5.0 / step + (step == 50 ? HUGE_VAL : 0)});
  history.eval.push_back({50, 0.25});

  const std::string svg = report::loss_plot(history);

  EXPECT_NE(svg.find("<svg"), std::string::npos);
  EXPECT_NE(svg.find("held out: 0.250"), std::string::npos);
  EXPECT_EQ(svg.find("inf"), std::string::npos);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
}

TEST(LossPlot, OfASingleFlatPointHasAnAxis) {
  report::LossHistory history;
  history.train.push_back({1, 2.0});

  EXPECT_EQ(report::loss_plot(history).find("nan"), std::string::npos);
}

TEST(LossPlot, ShowsLossesBelowZero) {
  const std::string svg =
      report::loss_plot({.train = {{1, -1.0}, {2, -3.0}}, .eval = {}, .last_step = 2});

  // The plot area ends 48 pixels above the bottom of the picture.
  EXPECT_NE(svg.find(">-2</text>"), std::string::npos) << svg;
  EXPECT_NE(svg.find("740.0,356.2"), std::string::npos) << "the last point is a margin above it";
}

TEST(StepLine, ReportsLossRateNormSpeedMemorySharesAndTimeLeft) {
  StepReport report = report_of(120, 3.21);
  report.data_s = 0.005;
  report.comm_s = 0.05;

  const std::string line = step_line(report, 5000, 3661);

  for (const char* part : {"step 120/5000",
                           "loss 3.2100",
                           "lr ",
                           "gnorm ",
                           "200",
                           "tok/s",
                           "mem ",
                           "data 1%",
                           "comm 10%",
                           "ETA 1h01m"}) {
    EXPECT_NE(line.find(part), std::string::npos) << part << " in " << line;
  }
}

TEST(StepLine, CountsImagesAsImages) {
  EXPECT_NE(step_line(report_of(1, 2.5), 9, 0).find(" tok/s |"), std::string::npos);
  EXPECT_NE(step_line(report_of(1, 2.5), 9, 0, "images").find(" images/s |"), std::string::npos);
}

TEST(StepLine, HasTheMeansOfTheStepsSinceTheLastOne) {
  StepsSincePrinted since;
  StepReport plain = report_of(8, 2.0), last = report_of(10, 1.0);
  plain.seconds = 0.1;
  plain.batch_tokens = 300;
  // The step that is printed makes histograms as well, and reads a longer batch.
  last.seconds = 0.7;
  last.batch_tokens = 600;
  last.data_s = 0.09;
  last.forward_s = 0.3;
  for (const StepReport& report : {plain, plain, last})
    since.add(report);

  const StepReport mean = since.take(last);

  EXPECT_EQ(mean.step, 10);
  EXPECT_EQ(mean.loss, 1.0) << "what does not depend on time is that of the step";
  EXPECT_DOUBLE_EQ(mean.seconds, 0.3);
  EXPECT_DOUBLE_EQ(mean.forward_s, 0.1);
  EXPECT_NE(step_line(mean, 20, 10 * mean.seconds).find("| 1.3k tok/s |"), std::string::npos)
      << step_line(mean, 20, 0);
  EXPECT_NE(step_line(mean, 20, 0).find("data 10% "), std::string::npos);
  since.add(plain);
  EXPECT_DOUBLE_EQ(since.take(plain).seconds, 0.1) << "each line begins anew";
}

TEST(StepLine, ReportsWhyAStepWasSkippedAndHowManyWere) {
  StepReport report = report_of(7, 3.0);
  report.skipped = true;
  report.skipped_total = 3;
  report.skip_reason = "the gradient of w is not finite";
  StepReport next = report_of(8, 3.0);
  next.skipped_total = 3;

  EXPECT_NE(step_line(report, 9, 0).find(" | skipped 3: the gradient of w is not finite"),
            std::string::npos);
  EXPECT_TRUE(step_line(next, 9, 0).ends_with(" | skipped 3"));
  EXPECT_EQ(step_line(report_of(9, 3.0), 9, 0).find("skipped"), std::string::npos);
}

}  // namespace
}  // namespace tessera::engine
