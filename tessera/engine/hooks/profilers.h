// SPDX-License-Identifier: Apache-2.0
// Profilers: a trace of some steps, the arithmetic of one step, the collectives of all steps.
#pragma once

#include <memory>
#include <string_view>
#include <utility>

#include "tessera/engine/hook.h"
#include "tessera/ops/op_log.h"
#include "tessera/report/comms_report.h"
#include "tessera/report/flops_report.h"
#include "tessera/report/profiler_options.h"
#include "tessera/report/trace_events.h"

namespace tessera::engine {

/// Traces the steps of `range` (first and last) on every rank, and writes profile/steps-A-B.json.
class TraceHook final : public Hook {
 public:
  explicit TraceHook(std::pair<std::int64_t, std::int64_t> range) : Hook(kReport), range_(range) {}
  [[nodiscard]] std::string_view name() const override { return "profile"; }
  void before_train_iter(Trainer& trainer) override;
  void after_train_iter(Trainer& trainer, const StepReport& report) override;

 private:
  void write(Trainer& trainer, const std::string& what);
  std::pair<std::int64_t, std::int64_t> range_;
  double begin_ = 0;  ///< begin of the step
  std::unique_ptr<report::TraceRecorder> recorder_;
  std::unique_ptr<ops::OpLog> operations_;
};

/// Reports parameters, multiply-accumulates, time and FLOPS of every block of the first rank in one
/// step.
class FlopsHook final : public Hook {
 public:
  explicit FlopsHook(report::FlopsProfilerOptions options)
      : Hook(kReport), options_(std::move(options)) {}
  [[nodiscard]] std::string_view name() const override { return "flops_profiler"; }
  void before_train_iter(Trainer& trainer) override;
  void after_train_iter(Trainer& trainer, const StepReport& report) override;

 private:
  report::FlopsProfilerOptions options_;
  std::unique_ptr<report::WorkCounter> counter_;
  std::unique_ptr<ops::OpLog> operations_;
};

/// Counts the collectives of every rank by operation and size. At the end the first rank writes
/// comms.txt, including how much longer than the fastest rank it waited.
class CommsHook final : public Hook {
 public:
  explicit CommsHook(report::CommsLoggerOptions options)
      : Hook(kReport), options_(std::move(options)) {}
  ~CommsHook() override;
  [[nodiscard]] std::string_view name() const override { return "comms_logger"; }
  void before_train(Trainer& trainer) override;
  void after_train(Trainer& trainer) override;

 private:
  report::CommsLoggerOptions options_;
  std::unique_ptr<report::CommsCounter> counter_;
};

/// Attaches the profilers that the configuration enables. They need a run folder.
void attach_profilers(Trainer& trainer);

}  // namespace tessera::engine
