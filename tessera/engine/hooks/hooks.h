// SPDX-License-Identifier: Apache-2.0
// The hooks that come with tessera.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/checkpoint/options.h"
#include "tessera/engine/hook.h"
#include "tessera/engine/metrics.h"
#include "tessera/engine/speed_meter.h"
#include "tessera/engine/trainer.h"
#include "tessera/hosts/host_part.h"

namespace tessera::engine {

/// "1,200 labels": what an evaluation of `dataset` has read.
std::string counted_text(Trainer& trainer, const EvalReport& report, const data::Dataset* dataset);

/// Writes metrics.jsonl in the run folder, and a line on the console every steps_per_print steps
/// and at the first and last step.
class MetricByStepHook final : public Hook {
 public:
  MetricByStepHook();
  ~MetricByStepHook() override;
  [[nodiscard]] std::string_view name() const override { return "metric-by-step"; }
  void before_train(Trainer& trainer) override;
  void before_train_iter(Trainer& trainer) override;
  void after_train_iter(Trainer& trainer, const StepReport& report) override;
  void after_test(Trainer& trainer, const EvalReport& report) override;
  void after_test_set(Trainer& trainer, const EvalReport& report) override;

 private:
  void write(Trainer& trainer, const std::function<void()>& line);
  void tell_expected(Trainer& trainer, const StepReport& report);
  std::unique_ptr<MetricsFile> file_;
  StepsSincePrinted since_;
  double measured_s_ = 0.0;
  SpeedMeter speed_;
  double comm_share_ = 0.0;
  std::int64_t steps_ = 0;
  bool warned_comm_ = false;
};

/// Prints the mean loss of each complete epoch on the console.
class MetricByEpochHook final : public Hook {
 public:
  MetricByEpochHook() : Hook(kReport) {}
  [[nodiscard]] std::string_view name() const override { return "metric-by-epoch"; }
  void before_train_epoch(Trainer& trainer) override;
  void after_train_iter(Trainer& trainer, const StepReport& report) override;
  void after_train_epoch(Trainer& trainer) override;

 private:
  double loss_ = 0.0;
  std::int64_t steps_ = 0;
};

/// The mean of the losses since the last reset.
class LossHook final : public Hook {
 public:
  LossHook() : Hook(kMetric) {}
  [[nodiscard]] std::string_view name() const override { return "loss"; }
  void after_train_iter(Trainer& trainer, const StepReport& report) override;
  [[nodiscard]] double mean() const {
    return steps_ == 0 ? 0.0 : sum_ / static_cast<double>(steps_);
  }
  void reset() {
    sum_ = 0.0;
    steps_ = 0;
  }

 private:
  double sum_ = 0.0;
  std::int64_t steps_ = 0;
};

/// At the end, prints the throughput in tokens per second over all steps except the first few.
class ThroughputHook final : public Hook {
 public:
  explicit ThroughputHook(std::int64_t ignored_steps = 0)
      : Hook(kReport), ignored_steps_(ignored_steps) {}
  [[nodiscard]] std::string_view name() const override { return "throughput"; }
  void after_train_iter(Trainer& trainer, const StepReport& report) override;
  void after_train(Trainer& trainer) override;
  [[nodiscard]] double tokens_per_s() const {
    return seconds_ > 0 ? static_cast<double>(tokens_) / seconds_ : 0.0;
  }

 private:
  std::int64_t ignored_steps_;
  std::int64_t seen_ = 0, tokens_ = 0;
  double seconds_ = 0.0;
};

/// Evaluates at the times that `when` sets and at the end.
class EvaluationHook final : public Hook {
 public:
  explicit EvaluationHook(config::Cadence when) : Hook(kReport), when_(when) {}
  /// Evaluates every `every` steps.
  explicit EvaluationHook(std::int64_t every) : EvaluationHook(config::Cadence{every}) {}
  [[nodiscard]] std::string_view name() const override { return "evaluation"; }
  [[nodiscard]] bool does(Duty duty) const override { return duty == Duty::Evaluate; }
  void after_train_iter(Trainer& trainer, const StepReport& report) override;
  void after_train(Trainer& trainer) override;

 private:
  void run(Trainer& trainer);
  config::Cadence when_;
  std::int64_t evaluated_step_ = -1;
};

/// After an evaluation, generates a sample text, which it appends to samples.jsonl, and writes the
/// plots; of a training without evaluations it writes the plots at the end. Attach it after the
/// CheckpointHook, so that a fault of what only shows the training costs no checkpoint, and before
/// the TestHook, which may load other weights.
class ShowHook final : public Hook {
 public:
  ShowHook() : Hook(kReport) {}
  [[nodiscard]] std::string_view name() const override { return "samples and plots"; }
  void before_train(Trainer& trainer) override;
  void after_test(Trainer& trainer, const EvalReport& report) override;
  void after_train_iter(Trainer& trainer, const StepReport& report) override;
  void after_train(Trainer& trainer) override;

 private:
  void show(Trainer& trainer);
  bool evaluated_ = false;  ///< since the last show()
  bool shown_ = false;
};

/// Ends the training when its evaluations have shown no gain for as long as `eval` specifies.
/// Attach it before the CheckpointHook, whose checkpoints record its counts.
class PatienceHook final : public Hook {
 public:
  PatienceHook() : Hook(kReport) {}
  [[nodiscard]] std::string_view name() const override { return "patience"; }
  void after_test(Trainer& trainer, const EvalReport& report) override;
};

/// Evaluates data.test at the times that `when` sets, and after the training with the best weights
/// if a checkpoint has them, and reports the results; MetricByStepHook writes them. Attach it after
/// the CheckpointHook. At the end the engine keeps the weights, step and optimizer state that were
/// evaluated. A training that was stopped is not evaluated at its end.
class TestHook final : public Hook {
 public:
  explicit TestHook(config::Cadence when = {}) : Hook(kReport), when_(when) {}
  [[nodiscard]] std::string_view name() const override { return "test set"; }
  void after_train_iter(Trainer& trainer, const StepReport& report) override;
  void after_train(Trainer& trainer) override;

 private:
  /// `weights`: which ones they are, for the console.
  void run(Trainer& trainer, const std::string& weights);
  config::Cadence when_;
  std::optional<std::pair<std::int64_t, EvalReport>> last_;  ///< and the step of its weights
};

/// Saves checkpoints at intervals of steps or minutes, at the best evaluation, at a stop and at the
/// end. Only one is written at a time: the next one and the end wait for it. If one cannot be
/// written, a warning says so and training continues.
class CheckpointHook final : public Hook {
 public:
  explicit CheckpointHook(checkpoint::Options options);
  [[nodiscard]] std::string_view name() const override { return "checkpoint"; }
  [[nodiscard]] bool does(Duty duty) const override { return duty == Duty::Save; }
  void before_train(Trainer& trainer) override;
  void before_train_iter(Trainer& trainer) override;
  void after_train_iter(Trainer& trainer, const StepReport& report) override;
  void after_train(Trainer& trainer) override;
  void after_test(Trainer& trainer, const EvalReport& report) override;

 private:
  [[nodiscard]] bool due(Trainer& trainer, const StepReport& report) const;
  [[nodiscard]] bool is_best(Trainer& trainer) const;
  void save(Trainer& trainer, bool wait);
  void finish(Trainer& trainer);
  void attempt(Trainer& trainer, const std::function<void()>& work);

  checkpoint::Options options_;
  std::optional<BestEvaluation> found_;   ///< better than the best one in any checkpoint
  std::optional<BestEvaluation> before_;  ///< the best evaluation before the last save
  double last_ = 0.0;                     ///< time of the last save
  std::int64_t step_ = 0;                 ///< step of the last save
  double waited_ = 0.0;                   ///< seconds that training waited for it
};

/// The live line of a terminal: bar, loss, speed, ETA.
class ProgressHook final : public Hook {
 public:
  ProgressHook() : Hook(kReport) {}
  [[nodiscard]] std::string_view name() const override { return "progress"; }
  void before_train(Trainer& trainer) override;
  void after_train_iter(Trainer& trainer, const StepReport& report) override;
  void after_train(Trainer& trainer) override;

 private:
  double start_ = 0.0;
  std::int64_t first_step_ = 0;
};

/// Attaches the hooks that `tessera train` uses, as configured by the plan; checkpoints need a run
/// folder, and copies in memory the part of this host with its copy servers, which outlives the
/// trainer.
void attach_defaults(Trainer& trainer, const hosts::HostPart* part = nullptr);

}  // namespace tessera::engine
