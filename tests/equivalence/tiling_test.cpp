// SPDX-License-Identifier: Apache-2.0
// labels: slow
// timeout: 300
// Weights in tiles: the same bits wherever the tiles are, and the untiled run within rounding.
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "support/train_runs.h"
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/nn/tiled_form.h"
#include "tessera/parallel/layout.h"
#include "tessera/planner/memory.h"
#include "tessera/planner/model_plan.h"

namespace tessera::test {
namespace {

constexpr std::int64_t kSteps = 4;

/// With a threshold of 0 stage 3 really moves the tiles of this tiny model to the disk.
TinyRun in_tiles(const char* tiling, bool bf16) {
  TinyRun run;
  run.set("zero_optimization.stage3_param_persistence_threshold", "0")
      .set("tiling", tiling)
      .set("bf16.enabled", bf16 ? "true" : "false");
  return run;
}

TinyRun on_a_disk(TinyRun run, const files::TempDir& disk) {
  run.set("zero_optimization.offload_param",
          R"({"device": "nvme", "nvme_path": ")" + disk.path().string() + R"("})")
      .set("zero_optimization.offload_optimizer",
           R"({"device": "nvme", "nvme_path": ")" + disk.path().string() + R"("})")
      .set("aio.block_size", "4096");
  return run;
}

struct TiledRow {
  const char* name;
  const char* tiling;
  bool bf16;
  std::vector<std::pair<const char*, const char*>> keys = {};
};

TinyRun with(TinyRun run, const std::vector<std::pair<const char*, const char*>>& keys) {
  for (const auto& [key, value] : keys)
    run.set(key, value);
  return run;
}

TEST(Tiling, TheSameBitsInEveryStageAndOnADiskAlsoResumedInEitherDirection) {
  const files::TempDir disk;
  const std::vector<TiledRow> all = {
      {"the tied table of embedding and head", R"({"wte": [1, 4]})", false},
      {"projections of layers and the head in bf16", R"({"wte": 8, "*.mlp.*": [1, 2]})", true},
      {"by size, recomputed", "2048", true, {{"activation_checkpointing.granularity", "\"full\""}}},
      {"a head of its own",
       R"({"lm_head": [1, 8]})",
       true,
       {{"model",
         R"({"family": "llama", "num_layers": 2, "hidden_size": 32, "num_heads": 4,
             "max_positions": 16, "tie_embeddings": false})"}}},
  };
  for (const TiledRow& row : all) {
    SCOPED_TRACE(row.name);
    const TinyRun memory = with(in_tiles(row.tiling, row.bf16), row.keys);
    const TinyRun away = on_a_disk(memory, disk);
    const Layout alone{.ranks = 1, .accumulation = 2, .stage = 0},
        resting{.ranks = 1, .accumulation = 2, .stage = 3};
    ASSERT_GT(planner::offload_bytes(away.plan(resting)).weights, 0);
    const Trace whole = memory.train(alone, kSteps);

    expect_same_bits(whole, away.train(resting, kSteps));
    expect_same_bits(whole, memory.train({.ranks = 2, .accumulation = 1, .stage = 1}, kSteps));
    expect_same_bits(whole, memory.train({.ranks = 2, .accumulation = 1, .stage = 2}, kSteps));
    expect_same_bits(whole, away.train({.ranks = 2, .accumulation = 1, .stage = 3}, kSteps));
    const Layout sharded{.ranks = 2, .accumulation = 1, .stage = 3};
    expect_same_bits(whole, memory.train(sharded, kSteps));
    const files::TempDir saved, saved_on_disk, saved_sharded;
    (void)memory.train(alone, 2, saved.path());
    EXPECT_EQ(away.train(resting, kSteps, {}, *checkpoint::newest(saved.path())).digest,
              whole.digest);
    (void)away.train(resting, 2, saved_on_disk.path());
    EXPECT_EQ(memory.train(alone, kSteps, {}, *checkpoint::newest(saved_on_disk.path())).digest,
              whole.digest);
    EXPECT_EQ(memory.train(sharded, kSteps, {}, *checkpoint::newest(saved.path())).digest,
              whole.digest);
    (void)memory.train(sharded, 2, saved_sharded.path());
    EXPECT_EQ(memory.train(alone, kSteps, {}, *checkpoint::newest(saved_sharded.path())).digest,
              whole.digest);
  }
  EXPECT_TRUE(std::filesystem::is_empty(disk.path())) << "a file remains on the disk";
}

// Ranks without samples, and ranks whose head runs for fewer samples, run the layers less often
// than those with whom they gather tiles. The last batch of an epoch has samples for some ranks
// only.
TEST(Tiling, RanksGatherTilesForEachOtherAlsoWithoutSamples) {
  constexpr std::int64_t kWholeEpoch = 6;
  const char* const tiling = R"({"wte": [1, 4], "*.mlp.*": [1, 2]})";
  const std::vector<TiledRow> all = {
      {"plain", tiling, false},
      {"recomputed in bf16", tiling, true, {{"activation_checkpointing.granularity", "\"full\""}}},
      {"groups of two ranks", tiling, true, {{"zero_optimization.zero_hpz_partition_size", "2"}}},
  };
  for (const TiledRow& row : all) {
    SCOPED_TRACE(row.name);
    TinyRun run = in_tiles(row.tiling, row.bf16);
    run.use_padded_documents();
    const Trace whole = run.train({.ranks = 1, .accumulation = 4, .stage = 0}, kWholeEpoch);

    const Trace sharded =
        with(run, row.keys).train({.ranks = 4, .accumulation = 1, .stage = 3}, kWholeEpoch);

    expect_same_bits(whole, sharded);
  }
}

// The adapter's own matrices are whole, and its products are added to those of the tiles.
TEST(Tiling, OfAFrozenBaseWithAdaptersHasTheSameBitsEverywhere) {
  const files::TempDir disk;
  TinyRun memory = in_tiles(R"({"wte": [1, 4], "*.mlp.*": [1, 2]})", true);
  memory.set("adapter", R"({"type": "lora", "r": 2, "alpha": 8, "targets": "all-linear"})");
  const Layout alone{.ranks = 1, .accumulation = 2, .stage = 0};
  const Trace whole = memory.train(alone, kSteps);

  expect_same_bits(whole, memory.train({.ranks = 2, .accumulation = 1, .stage = 3}, kSteps));
  expect_same_bits(
      whole, on_a_disk(memory, disk).train({.ranks = 1, .accumulation = 2, .stage = 3}, kSteps));
  const Trace untiled = TinyRun(memory).set("tiling", "null").train(alone, kSteps);
  ASSERT_EQ(untiled.losses.size(), whole.losses.size());
  for (std::size_t i = 0; i < whole.losses.size(); ++i)
    EXPECT_NEAR(whole.losses[i], untiled.losses[i], 5e-3 * untiled.losses[i]) << i;
  // Adapters change the run: it is not that of a base alone.
  EXPECT_NE(whole.digest,
            in_tiles(R"({"wte": [1, 4], "*.mlp.*": [1, 2]})", true).train(alone, kSteps).digest);
}

// The norms of DoRA's rows would read the whole weight.
TEST(Tiling, OfAWeightWhoseAdapterHasAMagnitudeIsRefused) {
  TinyRun run = in_tiles(R"({"*.mlp.*": [1, 2]})", false);
  run.set("adapter", R"({"type": "dora", "r": 2, "alpha": 8, "targets": "all-linear"})");
  try {
    (void)run.train({.ranks = 1, .stage = 0}, 1);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::Unsupported);
    EXPECT_NE(std::string(error.what()).find("in tiles"), std::string::npos) << error.what();
  }
}

// Only the gradient of a layer's input is a sum over the tiles.
TEST(Tiling, StaysWithinRoundingOfTheRunWithoutIt) {
  for (const bool bf16 : {false, true}) {
    SCOPED_TRACE(bf16);
    const char* const tiling = R"({"wte": [1, 8], "*.mlp.*": [1, 4]})";
    const Layout layout{.ranks = 1, .accumulation = 1, .stage = 0};
    const Trace plain = in_tiles("null", bf16).train(layout, kSteps),
                tiled = in_tiles(tiling, bf16).train(layout, kSteps);
    ASSERT_EQ(plain.losses.size(), tiled.losses.size());
    const double bound = bf16 ? 5e-3 : 2e-6;
    for (std::size_t i = 0; i < plain.losses.size(); ++i) {
      EXPECT_NEAR(plain.losses[i], tiled.losses[i], bound * plain.losses[i]) << i;
      EXPECT_NEAR(plain.grad_norms[i], tiled.grad_norms[i], 10 * bound * plain.grad_norms[i]) << i;
    }
    EXPECT_TRUE(in_tiles(tiling, bf16).plan(layout).model().rules.tiles);
  }
}

// A checkpoint has whole parameters, so that tiles may change at every start.
TEST(Tiling, AnUndividedRunContinuesFromTiles) {
  const files::TempDir saved;
  const Layout layout{.ranks = 1, .accumulation = 1, .stage = 0};
  const TinyRun tiled = in_tiles(R"({"wte": [1, 4]})", false), plain = in_tiles("null", false);
  (void)tiled.train(layout, 2, saved.path());
  const std::filesystem::path from = *checkpoint::newest(saved.path());
  const Trace on = plain.train(layout, kSteps, {}, from),
              other = tiled.train(layout, kSteps, {}, from);

  ASSERT_EQ(on.losses.size(), other.losses.size());
  for (std::size_t i = 0; i < on.losses.size(); ++i)
    EXPECT_NEAR(on.losses[i], other.losses[i], 1e-5) << i;
}

}  // namespace
}  // namespace tessera::test
