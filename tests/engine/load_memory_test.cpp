// SPDX-License-Identifier: Apache-2.0
// labels: slow
// timeout: 300
// Memory that a rank holds besides its share while it loads a training, ours or another program's.
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "engine/on_engines.h"
#include "support/peak_memory.h"
#include "support/train_runs.h"
#include <gtest/gtest.h>

#include "tessera/base/files.h"
#include "tessera/engine/engine.h"
#include "tessera/engine/launch.h"
#include "tessera/interop/foreign_training.h"
#include "tessera/interop/foreign_write.h"
#include "tessera/interop/model_export.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/with_data.h"

namespace tessera::engine {
namespace {

namespace fs = std::filesystem;
using tessera::test::Layout;
using tessera::test::on_engines;
using tessera::test::peak_growth;
using tessera::test::TinyRun;

constexpr std::int64_t kMiB = std::int64_t{1} << 20;
/// Memory that a rank may hold besides its share.
constexpr std::int64_t kBeside = 64 * kMiB;
constexpr int kRanks = 2;
constexpr std::int64_t kLayers = 8, kWidth = 448;
/// Weights of the matrices, which are nearly all.
constexpr std::int64_t kWeights = kLayers * 12 * kWidth * kWidth;

TinyRun large_run() {
  TinyRun run;
  run.set("model.num_layers", std::to_string(kLayers))
      .set("model.hidden_size", std::to_string(kWidth));
  return run;
}

/// How much `load` makes the memory of two ranks grow, both of them threads of one process.
std::int64_t growth(const TinyRun& run,
                    const Layout& layout,
                    const std::function<void(Engine&)>& load) {
  return peak_growth([&] {
    prepare_process(1);
    const planner::Plan made = run.plan(layout);
    const auto data = open_data(made, {});
    const planner::PlanWithData plan = planner::with_data(made, *data);
    comm::run_threads(plan.mesh(), [&](comm::World& world) {
      at::set_num_threads(1);
      Engine engine(plan, world, data);
      load(engine);
      engine.finish();
      world.transport().barrier(world.everyone(), TESSERA_HERE("end of a test"))->wait();
    });
    return true;
  });
}

TEST(MemoryOfAResumedEngine, IsThatOfANewOneAndLittleMore) {
  const TinyRun run = large_run();
  const files::TempDir dir;
  // In a child process, as the other tests do: the process that forks must not have made an ATen
  // call.
  ASSERT_GE(peak_growth([&] {
              on_engines(run, {}, [&](Engine& engine) { engine.save(dir.path()); });
              return true;
            }),
            0);
  const fs::path ours = dir.path() / "step-00000000", universal = dir.path() / "ds",
                 pair = dir.path() / "model_000000.pth";
  ASSERT_TRUE(fs::exists(ours / "manifest.json"));
  fs::create_directory(universal);
  ASSERT_GE(peak_growth([&] {
              const interop::Foreign training = interop::open_training_export(ours);
              interop::write_universal(universal, training, [](std::uint64_t) {});
              interop::write_torch_loop(
                  pair, dir.path() / "optimizer_000000.pth", training, [](std::uint64_t) {});
              return true;
            }),
            0);

  for (const Layout& layout :
       {Layout{.ranks = kRanks, .stage = 3}, Layout{.ranks = kRanks, .tensor = 2}}) {
    SCOPED_TRACE(layout.tensor > 1 ? "tensor parallel" : "stage 3");
    const std::int64_t fresh =
        growth(run, layout, [](Engine& engine) { engine.initialize_weights(); });
    ASSERT_GT(fresh, 4 * kWeights);  // the masters at least
    // A new engine may leave its two moments untouched, which a load fills.
    const std::int64_t most = fresh + 8 * kWeights + kRanks * kBeside;

    const std::int64_t of_ours =
        growth(run, layout, [&](Engine& engine) { engine.load(checkpoint::Checkpoint(ours)); });
    EXPECT_GT(of_ours, 12 * kWeights);
    EXPECT_LE(of_ours, most);
    for (const fs::path& theirs : {universal, pair}) {
      const std::int64_t of_theirs = growth(run, layout, [&](Engine& engine) {
        engine.load(interop::open_training(theirs, engine.plan()));
      });
      EXPECT_GT(of_theirs, 12 * kWeights) << theirs;
      EXPECT_LE(of_theirs, most) << theirs;
    }
  }
}

}  // namespace
}  // namespace tessera::engine
