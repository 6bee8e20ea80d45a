// SPDX-License-Identifier: Apache-2.0
// The hooks of `tessera train`.
#include <cstdint>
#include <memory>

#include "tessera/engine/hooks/experts.h"
#include "tessera/engine/hooks/hooks.h"
#include "tessera/engine/hooks/monitors.h"
#include "tessera/engine/hooks/peer_copies.h"
#include "tessera/engine/hooks/profilers.h"
#include "tessera/engine/hooks/ranks.h"
#include "tessera/engine/hooks/stragglers.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/run_plan.h"

namespace tessera::engine {

void attach_defaults(Trainer& trainer, const hosts::HostPart* part) {
  const planner::RunPlan& run = trainer.engine().plan().run();
  trainer.attach(std::make_unique<MetricByStepHook>());
  trainer.attach(std::make_unique<MetricByEpochHook>());
  trainer.attach(std::make_unique<ThroughputHook>(/*ignored_steps=*/2));
  trainer.attach(std::make_unique<StragglerHook>());
  const std::int64_t steps = trainer.engine().max_steps();
  if (run.eval.when().any())
    trainer.attach(std::make_unique<EvaluationHook>(run.eval.when().in_run_of(steps)));
  if (run.eval.stops_early()) trainer.attach(std::make_unique<PatienceHook>());
  if (!trainer.run_dir().empty()) trainer.attach(std::make_unique<CheckpointHook>(run.checkpoint));
  trainer.attach(std::make_unique<ShowHook>());
  // The test set may be evaluated with other weights, which must not change under a copy.
  if (part != nullptr && part->copies.own >= 0)
    trainer.attach(std::make_unique<PeerCopyHook>(*part, run.checkpoint.peer_every));
  if (trainer.engine().data().test != nullptr)
    trainer.attach(std::make_unique<TestHook>(run.eval.test_when().in_run_of(steps)));
  if (!trainer.run_dir().empty()) {
    trainer.attach(std::make_unique<RanksHook>());
    trainer.attach(std::make_unique<ExpertsHook>());
  }
  attach_profilers(trainer);
  attach_monitors(trainer);
  trainer.attach(std::make_unique<ProgressHook>());
}

}  // namespace tessera::engine
