// SPDX-License-Identifier: Apache-2.0
// Hooks that report: metrics by step and epoch, mean loss, throughput, the progress line.
#include <algorithm>
#include <functional>
#include <string>

#include <fmt/format.h>

#include "tessera/base/clock.h"
#include "tessera/base/text.h"
#include "tessera/engine/hooks/hooks.h"
#include "tessera/models/family.h"
#include "tessera/planner/data_plan.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/run_options.h"
#include "tessera/planner/run_plan.h"
#include "tessera/planner/values.h"

namespace tessera::engine {

namespace {

/// The unit of a step's batch: images, or `tokens`.
const char* unit_of(Trainer& trainer, const char* tokens) {
  const models::Modality read = planner::model_of(trainer.engine().plan()).trunk.output.modality;
  return read == models::Modality::Images ? "images" : tokens;
}

}  // namespace

std::string counted_text(Trainer& trainer, const EvalReport& report, const data::Dataset* dataset) {
  const planner::Plan& plan = trainer.engine().plan();
  const bool rollouts = plan.data().task != nullptr && plan.data().task->writes_answers();
  const std::string what = rollouts || dataset == nullptr
                               ? "tokens"
                               : counted_by(*dataset, planner::model_of(plan).objective);
  return text::with_commas(report.tokens) + " " + what + part_text(report);
}

MetricByStepHook::MetricByStepHook() : Hook(kReport) {}
MetricByStepHook::~MetricByStepHook() = default;

void MetricByStepHook::before_train(Trainer& trainer) {
  if (!trainer.engine().world().is_leader() || trainer.run_dir().empty()) return;
  file_ =
      std::make_unique<MetricsFile>(trainer.run_dir() / "metrics.jsonl", trainer.engine().step());
}

void MetricByStepHook::before_train_iter(Trainer& trainer) {
  speed_.before_step(trainer.engine());
}

/// If the disk is full, stops writing metrics.jsonl and lets training continue.
void MetricByStepHook::write(Trainer& trainer, const std::function<void()>& line) {
  if (file_ && !trainer.try_to_write(line)) file_.reset();
}

void MetricByStepHook::after_train_iter(Trainer& trainer, const StepReport& report) {
  const planner::Printing& printing = trainer.engine().plan().run().printing;
  trainer.try_to_write([&] { speed_.after_step(trainer.engine(), report, trainer.run_dir()); });
  StepReport written = report;
  if (speed_.speed()) written.matrix_share = speed_.speed()->share(report.seconds);
  write(trainer, [&] { file_->write(written, printing.wall_clock_breakdown); });
  ++steps_;
  tell_expected(trainer, report);
  comm_share_ +=
      (report.comm_s / std::max(report.seconds, 1e-9) - comm_share_) / static_cast<double>(steps_);
  Console* console = trainer.console();
  if (console == nullptr) return;
  since_.add(report);
  const std::int64_t last = trainer.engine().max_steps();
  const bool due = printing.steps_per_print > 0 && report.step % printing.steps_per_print == 0;
  if (steps_ == 1 || report.step == last || due || report.skipped || report.stop_requested) {
    const StepReport mean = since_.take(report);
    std::string shown = step_line(mean,
                                  last,
                                  mean.seconds * static_cast<double>(last - report.step),
                                  unit_of(trainer, "tok"));
    if (speed_.speed()) shown += " | " + speed_.speed()->text(mean.seconds);
    console->line(shown);
    if (printing.wall_clock_breakdown) console->line(breakdown_line(mean));
    if (printing.memory_breakdown) {
      const memory::Usage usage = trainer.engine().memory();
      std::string line = "  memory (peak of each)";
      for (int t = 0; t < memory::kNumTags; ++t) {
        const auto tag = static_cast<memory::Tag>(t);
        const auto peak = static_cast<std::uint64_t>(
            std::max<std::int64_t>(0, usage.peak[static_cast<std::size_t>(t)]));
        line += fmt::format(" | {} {}", memory::name(tag), text::bytes(peak));
      }
      console->line(line);
    }
  }
  if (!warned_comm_ && steps_ >= 20 && comm_share_ > 0.5 && trainer.engine().world().size() > 1) {
    warned_comm_ = true;
    console->line(fmt::format(
        "note: communication takes {:.0f}% of the time; fewer ranks (-n {}) would likely be faster",
        100 * comm_share_,
        std::max(1, trainer.engine().world().size() / 2)));
  }
}

/// Prints the expected end of a training that takes long, once the speed is known.
void MetricByStepHook::tell_expected(Trainer& trainer, const StepReport& report) {
  constexpr std::int64_t kMeasured = 10;    // measured steps; the first two are not counted
  constexpr double kWorthTelling_s = 1800;  // minimum remaining time
  if (steps_ == 2) measured_s_ = 0;
  measured_s_ += report.seconds;
  Console* const console = trainer.console();
  if (steps_ != kMeasured || console == nullptr) return;
  const std::int64_t left = trainer.engine().max_steps() - report.step;
  const double expected =
      measured_s_ / static_cast<double>(kMeasured - 1) * static_cast<double>(left);
  if (expected < kWorthTelling_s) return;
  console->line(fmt::format("expected: about {} for the {} steps that are left",
                            text::duration(expected),
                            text::with_commas(left)));
}

void MetricByStepHook::after_test(Trainer& trainer, const EvalReport& report) {
  const std::int64_t step = trainer.engine().step();
  write(trainer, [&] { file_->write(step, report); });
  if (Console* console = trainer.console()) {
    console->line(
        fmt::format("eval at step {} | loss {:.4f}{} | {}",
                    step,
                    text::unsigned_nan(report.loss),
                    metrics_text(report.metrics),
                    counted_text(trainer, report, trainer.engine().data().validation.get())));
  }
}

void MetricByStepHook::after_test_set(Trainer& trainer, const EvalReport& report) {
  write(trainer, [&] { file_->write(trainer.engine().step(), report, EvalSplit::Test); });
}

void MetricByEpochHook::before_train_epoch(Trainer& /*trainer*/) {
  loss_ = 0.0;
  steps_ = 0;
}

void MetricByEpochHook::after_train_iter(Trainer& /*trainer*/, const StepReport& report) {
  loss_ += report.loss;
  ++steps_;
}

void MetricByEpochHook::after_train_epoch(Trainer& trainer) {
  Console* console = trainer.console();
  if (console == nullptr || !trainer.last()->epoch_ended) return;
  console->line(fmt::format("epoch {:.0f} | {} steps | mean loss {:.4f}",
                            trainer.last()->epoch,
                            steps_,
                            loss_ / static_cast<double>(steps_)));
}

void LossHook::after_train_iter(Trainer& /*trainer*/, const StepReport& report) {
  sum_ += report.loss;
  ++steps_;
}

void ThroughputHook::after_train_iter(Trainer& /*trainer*/, const StepReport& report) {
  if (++seen_ <= ignored_steps_) return;
  tokens_ += report.batch_tokens;
  seconds_ += report.seconds;
}

void ThroughputHook::after_train(Trainer& trainer) {
  Console* console = trainer.console();
  if (console == nullptr || tokens_ == 0) return;
  console->line(fmt::format("throughput {} {}/s over {} steps (the first {} not counted)",
                            text::count(tokens_per_s()),
                            unit_of(trainer, "tokens"),
                            seen_ - ignored_steps_,
                            ignored_steps_));
}

void ProgressHook::before_train(Trainer& trainer) {
  start_ = now_s();
  first_step_ = trainer.engine().step();
}

void ProgressHook::after_train_iter(Trainer& trainer, const StepReport& report) {
  Console* console = trainer.console();
  if (console == nullptr || !console->is_terminal()) return;
  constexpr int kWidth = 24;
  const std::int64_t last = trainer.engine().max_steps();
  const double elapsed = now_s() - start_;
  const double eta = elapsed / static_cast<double>(report.step - first_step_) *
                     static_cast<double>(last - report.step);
  const auto filled = static_cast<int>(
      static_cast<double>(kWidth) * static_cast<double>(report.step) / static_cast<double>(last));
  std::string bar;
  for (int i = 0; i < kWidth; ++i)
    bar += i < filled ? "█" : "░";
  console->live(fmt::format(
      "{} {}/{}  loss {:.3f}  {} {}/s  ETA {}",
      bar,
      report.step,
      last,
      report.loss,
      text::count(static_cast<double>(report.batch_tokens) / std::max(report.seconds, 1e-9)),
      unit_of(trainer, "tok"),
      text::duration(eta)));
}

void ProgressHook::after_train(Trainer& trainer) {
  if (Console* console = trainer.console()) console->live("");
}

}  // namespace tessera::engine
