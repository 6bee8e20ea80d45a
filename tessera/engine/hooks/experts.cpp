// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/hooks/experts.h"

#include "tessera/base/files.h"
#include "tessera/engine/trainer.h"

namespace tessera::engine {

void ExpertsHook::after_train_iter(Trainer& trainer, const StepReport& report) {
  if (report.expert_loads.empty() || stopped_ || !trainer.engine().world().is_leader()) return;
  constexpr std::int64_t kEvery = 10;
  loads_.add(report.step, report.expert_loads);
  const bool last = report.stop_requested || report.step >= trainer.engine().max_steps();
  if (!last && report.step % kEvery != 0) return;
  stopped_ = !trainer.try_to_write([&] {
    files::write_atomic(trainer.run_dir() / "experts.json", report::json_of(loads_).dump() + '\n');
    if (last) files::write_atomic(trainer.run_dir() / "experts.svg", report::experts_plot(loads_));
  });
  loads_ = {};
}

}  // namespace tessera::engine
