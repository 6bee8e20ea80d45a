// SPDX-License-Identifier: Apache-2.0
// Shows a training in other programs: TensorBoard, csv files, W&B, Comet, Prometheus.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "tessera/engine/hook.h"
#include "tessera/report/monitors/monitor.h"

namespace tessera::engine {

/// Passes every line of metrics.jsonl and every sample text to one monitor of report::monitors(),
/// on the leader. A write error ends the monitor, not the training: a warning reports it, and so
/// does the exit code at the end.
class MonitorHook final : public Hook {
 public:
  /// `monitor`: a registered name.
  explicit MonitorHook(std::string monitor) : Hook(kReport), monitor_name_(std::move(monitor)) {}
  [[nodiscard]] std::string_view name() const override { return monitor_name_; }
  void before_train(Trainer& trainer) override;
  void after_train_iter(Trainer& trainer, const StepReport& report) override;
  void after_test(Trainer& trainer, const EvalReport& report) override;
  void after_test_set(Trainer& trainer, const EvalReport& report) override;
  void after_sample(Trainer& trainer, std::string_view text) override;
  void after_train(Trainer& trainer) override;

 private:
  void attempt(Trainer& trainer, const std::function<void()>& work);
  void write(Trainer& trainer, json::Value values);

  std::string monitor_name_;
  std::unique_ptr<report::Monitor> monitor_;
};

/// Attaches a MonitorHook for each monitor that the configuration enables; they need a run folder.
void attach_monitors(Trainer& trainer);

}  // namespace tessera::engine
