// SPDX-License-Identifier: Apache-2.0
// The hooks of `tessera train`.
#include <memory>

#include "tessera/engine/hooks/hooks.h"

namespace tessera::engine {

void attach_defaults(Trainer& trainer) {
  const planner::TrainConfig& config = trainer.engine().plan().config;
  trainer.attach(std::make_unique<MetricByStepHook>());
  trainer.attach(std::make_unique<MetricByEpochHook>());
  trainer.attach(std::make_unique<ThroughputHook>(/*ignored_steps=*/2));
  if (config.eval.every > 0) trainer.attach(std::make_unique<EvaluationHook>(config.eval.every));
  if (!trainer.run_dir().empty())
    trainer.attach(std::make_unique<CheckpointHook>(config.checkpoint));
  trainer.attach(std::make_unique<ProgressHook>());
}

}  // namespace tessera::engine
