// SPDX-License-Identifier: Apache-2.0
// Trainings on hosts that save on their own disks. Here a folder stands for a host, and each has
// two ranks.
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "engine/on_engines.h"
#include "support/train_runs.h"
#include <gtest/gtest.h>

#include "tessera/base/files.h"
#include "tessera/checkpoint/folders.h"
#include "tessera/checkpoint/node_parts.h"
#include "tessera/checkpoint/parts.h"
#include "tessera/checkpoint/streamed_save.h"
#include "tessera/engine/hooks/hooks.h"
#include "tessera/engine/trainer.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/run_plan.h"

namespace tessera::engine {
namespace {

namespace fs = std::filesystem;
using tessera::test::Layout;
using tessera::test::on_engines;
using tessera::test::TinyRun;

const Layout kFour{.ranks = 4, .accumulation = 1};

class TwoHosts : public ::testing::TestWithParam<const char*> {
 protected:
  TwoHosts() { run.set("checkpoint.use_node_local_storage", "true"); }
  /// The folder of the host that this engine is now on.
  [[nodiscard]] fs::path settle(Engine& engine) const {
    const int rank = engine.world().rank();
    engine.world().set_host({rank / 2, 2, rank % 2});
    fs::create_directories(disk(rank / 2));
    return disk(rank / 2);
  }
  [[nodiscard]] fs::path disk(int host) const { return dir.path() / std::to_string(host); }
  TinyRun run;
  files::TempDir dir;
};
std::vector<double> losses_until(Engine& engine, std::int64_t end) {
  std::vector<double> out;
  while (engine.step() < end)
    out.push_back(engine.train_step().loss);
  return out;
}

TEST_P(TwoHosts, GoOnFromTheirPartsAsIfNothingHadBeen) {
  std::vector<double> undisturbed, resumed, merged;
  on_engines(run, kFour, [&](Engine& engine) {
    const fs::path root = settle(engine);
    losses_until(engine, 3);
    const bool beside = GetParam() == std::string("true");
    beside ? engine.saver().save_in_background(root) : static_cast<void>(engine.save(root));
    const auto losses = losses_until(engine, 6);
    if (beside) engine.saver().finish();
    if (engine.world().is_leader()) undisturbed = losses;
  });

  on_engines(run, kFour, [&](Engine& engine) {
    const fs::path root = settle(engine);
    const auto from = checkpoint::newest_common(root, engine.saver().ranks());
    engine.load(checkpoint::Checkpoint(from.value()));
    const auto losses = losses_until(engine, 6);
    if (engine.world().is_leader()) resumed = losses;
  });
  const auto joined = std::make_shared<const checkpoint::Checkpoint>(checkpoint::open_parts(
      disk(0) / checkpoint::step_name(3), {disk(1) / checkpoint::step_name(3)}));
  fs::create_directory(dir.path() / "merged");
  checkpoint::write_checkpoint(
      dir.path() / "merged", joined->meta(), checkpoint::tensors_of(joined));
  on_engines(
      run,
      {.ranks = 2, .accumulation = 2},
      [&](Engine& engine) {
        const auto losses = losses_until(engine, 6);
        if (engine.world().is_leader()) merged = losses;
      },
      dir.path() / "merged");

  ASSERT_EQ(undisturbed.size(), 3U);
  EXPECT_EQ(resumed, undisturbed);
  EXPECT_EQ(merged, undisturbed);
}

TEST_P(TwoHosts, KeepTheSameCheckpoints) {
  run.set("checkpoint.async", GetParam());
  run.set("checkpoint.every", "2").set("checkpoint.keep", "2").set("trainer.max_steps", "7");

  on_engines(run, kFour, [&](Engine& engine) {
    Trainer trainer(engine, nullptr, settle(engine));
    trainer.attach(std::make_unique<CheckpointHook>(engine.plan().run().checkpoint));
    EXPECT_EQ(trainer.fit(), kExitOk);
  });

  for (int host = 0; host < 2; ++host) {
    std::vector<std::int64_t> steps;
    for (const auto& folder : checkpoint::list(disk(host) / "checkpoints")) {
      steps.push_back(*checkpoint::step_of(folder));
      checkpoint::Checkpoint(folder).verify();
      EXPECT_FALSE(fs::exists(folder / "manifest.json"));
    }
    EXPECT_EQ(steps, (std::vector<std::int64_t>{6, 7})) << host;
  }
}

INSTANTIATE_TEST_SUITE_P(Saves, TwoHosts, ::testing::Values("false", "true"), [](const auto& info) {
  return std::string(info.param) == "true" ? "Beside" : "Waiting";
});

}  // namespace
}  // namespace tessera::engine
