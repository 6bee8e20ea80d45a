// SPDX-License-Identifier: Apache-2.0
// Trains a GPT from C++ in four steps: configuration, launch, initialize, fit; with a user-defined
// hook.
//
//   train_gpt [CONFIG] [RANKS]
#include <cstdio>
#include <cstdlib>
#include <string>

#include "tessera/base/files.h"
#include "tessera/engine/engine.h"
#include "tessera/engine/hooks/hooks.h"
#include "tessera/engine/launch.h"
#include "tessera/engine/trainer.h"
#include "tessera/planner/make_plan.h"
#include "tessera/planner/plan.h"

namespace {

using namespace tessera;  // NOLINT: an example reads better so

/// Prints a line whenever the loss reaches a new minimum.
class BestLoss final : public engine::Hook {
 public:
  BestLoss() : Hook(kMetric) {}
  [[nodiscard]] std::string_view name() const override { return "best-loss"; }
  void after_train_iter(engine::Trainer& trainer, const engine::StepReport& report) override {
    if (report.loss >= best_) return;
    best_ = report.loss;
    if (trainer.engine().world().is_leader()) {
      std::printf("step %ld: best loss so far %.4f\n", static_cast<long>(report.step), best_);
    }
  }

 private:
  double best_ = 1e9;
};

int train(const std::string& path, int ranks) {
  // 1. The configuration is read and checked completely before any rank starts.
  const planner::Plan plan = planner::make_plan(json::parse(files::read(path), path), ranks, path);
  const auto report = [](const std::vector<std::string>& lines, int /*exit_code*/) {
    for (const std::string& line : lines)
      std::fprintf(stderr, "%s\n", line.c_str());
  };
  // 2. The ranks are processes of this host, or the one started by torchrun, srun or mpirun.
  return engine::run_ranks(plan, report, [&](comm::World& world) {
    // 3. The engine connects model, data, optimizer and layout.
    const auto engine = engine::initialize(plan, world);
    // 4. The training loop.
    engine::Trainer trainer(*engine);
    engine::attach_defaults(trainer);
    trainer.attach(std::make_unique<BestLoss>());
    return trainer.fit();
  });
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return train(argc > 1 ? argv[1] : "examples/configs/tiny.json",
                 argc > 2 ? std::atoi(argv[2]) : 2);
  } catch (const Error& error) {
    std::fprintf(stderr, "error: %s\n", error.text().c_str());
    return exit_code(error.kind());
  }
}
