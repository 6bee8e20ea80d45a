// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/hooks/monitors.h"

#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/base/wall_clock.h"
#include "tessera/engine/metrics.h"
#include "tessera/engine/trainer.h"
#include "tessera/launch/machine.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/run_plan.h"

namespace tessera::engine {
namespace {

report::MonitorContext context_of(Trainer& trainer) {
  Engine& engine = trainer.engine();
  return {.run_dir = trainer.run_dir(),
          .sections = engine.plan().run().sections,
          .resolved = engine.plan().resolved(),
          .step = engine.step(),
          .samples = engine.samples(),
          .time = unix_time(),
          .host = launch::machine().host};
}

}  // namespace

/// Examples of errors: a full disk, an occupied port.
void MonitorHook::attempt(Trainer& trainer, const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    const bool outside =
        error.kind() == Error::Kind::Io || error.kind() == Error::Kind::Environment;
    if (!outside) throw;
    monitor_.reset();
    trainer.note_incomplete(fmt::format("{}: {}", monitor_name_, error.what()));
    log::warn(fmt::format("training goes on without {}: {}", monitor_name_, error.text()));
  }
}

void MonitorHook::before_train(Trainer& trainer) {
  if (!trainer.engine().world().is_leader() || trainer.run_dir().empty()) return;
  attempt(trainer, [&] {
    monitor_ = report::monitors().get(monitor_name_).make(context_of(trainer));
    const std::string place = monitor_->place();
    Console* const console = trainer.console();
    if (console != nullptr && !place.empty())
      console->line(fmt::format("{} in {}", monitor_name_, place));
  });
}

void MonitorHook::write(Trainer& trainer, json::Value values) {
  attempt(trainer, [&] {
    const Engine& engine = trainer.engine();
    monitor_->write({.values = std::move(values),
                     .step = engine.step(),
                     .samples = engine.samples(),
                     .time = unix_time()});
  });
}

void MonitorHook::after_train_iter(Trainer& trainer, const StepReport& report) {
  if (!monitor_) return;
  write(trainer,
        step_values(
            report, trainer.engine().plan().run().printing.wall_clock_breakdown, unix_time()));
  if (report.histograms.empty() || !monitor_) return;
  attempt(trainer, [&] {
    monitor_->histograms({.step = report.step, .samples = report.samples, .time = unix_time()},
                         report.histograms);
  });
}

void MonitorHook::after_test(Trainer& trainer, const EvalReport& report) {
  if (!monitor_) return;
  write(trainer, eval_values(trainer.engine().step(), report, EvalSplit::Validation));
}

void MonitorHook::after_test_set(Trainer& trainer, const EvalReport& report) {
  if (!monitor_) return;
  write(trainer, eval_values(trainer.engine().step(), report, EvalSplit::Test));
}

void MonitorHook::after_sample(Trainer& trainer, std::string_view text) {
  if (!monitor_) return;
  attempt(trainer, [&] {
    const Engine& engine = trainer.engine();
    monitor_->text({.step = engine.step(), .samples = engine.samples(), .time = unix_time()}, text);
  });
}

void MonitorHook::after_train(Trainer& trainer) {
  if (!monitor_) return;
  attempt(trainer, [&] { monitor_->finish(unix_time(), trainer.stop_signal() == 0); });
  monitor_.reset();
}

void attach_monitors(Trainer& trainer) {
  if (trainer.run_dir().empty()) return;
  for (const std::string& name : report::monitors().names()) {
    if (report::monitors().get(name).enabled(trainer.engine().plan().run().sections))
      trainer.attach(std::make_unique<MonitorHook>(name));
  }
}

}  // namespace tessera::engine
