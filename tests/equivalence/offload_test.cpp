// SPDX-License-Identifier: Apache-2.0
// labels: slow
// timeout: 300
// Masters, states and working weights that rest on a disk, against the same run in memory.
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "support/train_runs.h"
#include <gtest/gtest.h>

#include "tessera/parallel/layout.h"
#include "tessera/planner/memory.h"

namespace tessera::test {
namespace {

constexpr std::int64_t kSteps = 4;

/// With a threshold of 0 stage 3 really shards this tiny model.
TinyRun sharded_run() {
  TinyRun run;
  run.set("zero_optimization.stage3_param_persistence_threshold", "0");
  return run;
}

/// Masters and states on a disk, in groups of the smallest size.
TinyRun offloaded(TinyRun run, const files::TempDir& disk, const char* buffers) {
  run.set("zero_optimization.offload_optimizer.device", "\"nvme\"")
      .set("zero_optimization.offload_optimizer.nvme_path", "\"" + disk.path().string() + "\"")
      .set("zero_optimization.offload_optimizer.buffer_count", buffers)
      .set("zero_optimization.sub_group_size", "1024");
  return run;
}

TEST(OptimizerOffload, ToADiskChangesNoBitInAnyStageAlsoResumedInEitherDirection) {
  const files::TempDir disk;
  for (const char* type : {"\"AdamW\"", "\"Lamb\""}) {
    for (const int ranks : {1, 2}) {
      for (const int stage : {1, 2, 3}) {
        SCOPED_TRACE(std::string(type) + ", stage " + std::to_string(stage) + ", ranks " +
                     std::to_string(ranks));
        const TinyRun memory = sharded_run()
                                   .set("optimizer.type", type)
                                   .set("bf16.enabled", stage == 1 ? "false" : "true");
        const TinyRun on_disk = offloaded(memory, disk, stage == 2 ? "1" : "3");
        const Layout layout{.ranks = ranks, .accumulation = 1, .stage = stage};
        ASSERT_GT(planner::offload_bytes(on_disk.plan(layout)).states, 0);
        const Trace whole = memory.train(layout, kSteps);
        expect_same_bits(whole, on_disk.train(layout, kSteps));
        for (const auto& [first, second] :
             {std::pair(&memory, &on_disk), std::pair(&on_disk, &memory)}) {
          const files::TempDir saved;
          (void)first->train(layout, 2, saved.path());
          const Trace rest = second->train(layout, kSteps, {}, *checkpoint::newest(saved.path()));
          EXPECT_EQ(rest.digest, whole.digest);
          EXPECT_EQ(rest.eval_losses, whole.eval_losses);
        }
      }
    }
  }
  EXPECT_TRUE(std::filesystem::is_empty(disk.path())) << "a file remains on the disk";
}

TEST(OptimizerOffload, OfAPartOfTheStatesChangesNoBit) {
  const files::TempDir disk, saved;
  TinyRun memory = sharded_run();
  memory.set("bf16.enabled", "true");
  TinyRun part = offloaded(memory, disk, "2");
  part.set("zero_optimization.offload_optimizer.ratio", "0.4");
  const Layout layout{.ranks = 2, .accumulation = 1, .stage = 3};
  const Trace whole = memory.train(layout, kSteps);

  expect_same_bits(whole, part.train(layout, kSteps));
  (void)part.train(layout, 2, saved.path());
  EXPECT_EQ(part.train(layout, kSteps, {}, *checkpoint::newest(saved.path())).digest, whole.digest);
}

/// Working weights on a disk.
TinyRun with_weights_on(TinyRun run, const files::TempDir& disk, const char* buffers) {
  run.set("zero_optimization.offload_param.device", "\"nvme\"")
      .set("zero_optimization.offload_param.nvme_path", "\"" + disk.path().string() + "\"")
      .set("zero_optimization.offload_param.buffer_count", buffers);
  return run;
}

/// A training whose weights rest on a disk.
struct OnDisk {
  const char* name;
  int ranks, accumulation;
  bool bf16, states;
  std::vector<std::pair<const char*, const char*>> keys;
};

TEST(WeightOffload, ToADiskChangesNoBitAlsoResumedInEitherDirection) {
  const files::TempDir disk;
  const std::vector<OnDisk> all = {
      {"fp32", 1, 1, false, false, {}},
      {"fp32 on two ranks with states", 2, 2, false, true, {}},
      {"bf16 with recompute", 2, 1, true, false, {{"activation_checkpointing.enabled", "true"}}},
      {"bf16 with states and norms", 1, 2, true, true, {{"optimizer.type", "\"Lamb\""}}},
      {"bf16 masters",
       2,
       1,
       true,
       false,
       {{"bf16.bf16_master_weights_and_grads", "true"}, {"bf16.bf16_optimizer_states", "true"}}},
      {"whole directions", 2, 1, true, true, {{"optimizer.type", "\"Muon\""}}},
      {"a moving average", 1, 1, true, true, {{"trainer.ema.decay", "0.9"}}},
      {"selective recompute and reading further ahead",
       1,
       2,
       false,
       false,
       {{"activation_checkpointing.granularity", "\"selective\""},
        {"zero_optimization.stage3_prefetch_bucket_size", "1000000"}}},
  };
  for (std::size_t i = 0; i < all.size(); ++i) {
    const OnDisk& row = all[i];
    SCOPED_TRACE(row.name);
    TinyRun memory = sharded_run().set("bf16.enabled", row.bf16 ? "true" : "false");
    for (const auto& [key, value] : row.keys)
      memory.set(key, value);
    const char* const buffers[] = {"1", "2", "3"};
    TinyRun on_disk = with_weights_on(memory, disk, buffers[i % 3]);
    if (row.states) on_disk = offloaded(on_disk, disk, "3");
    const Layout layout{.ranks = row.ranks, .accumulation = row.accumulation, .stage = 3};
    ASSERT_GT(planner::offload_bytes(on_disk.plan(layout)).weights, 0);
    const Trace whole = memory.train(layout, kSteps);
    expect_same_bits(whole, on_disk.train(layout, kSteps));
    for (const auto& [first, second] :
         {std::pair(&memory, &on_disk), std::pair(&on_disk, &memory)}) {
      const files::TempDir saved;
      (void)first->train(layout, 2, saved.path());
      const Trace rest = second->train(layout, kSteps, {}, *checkpoint::newest(saved.path()));
      EXPECT_EQ(rest.digest, whole.digest);
      EXPECT_EQ(rest.eval_losses, whole.eval_losses);
    }
  }
  EXPECT_TRUE(std::filesystem::is_empty(disk.path())) << "a file remains on the disk";
}

TEST(WeightOffload, OfAnAdaptersFrozenBaseChangesNoBit) {
  const files::TempDir disk;
  TinyRun memory = sharded_run();
  memory.set("adapter", R"({"type": "lora", "r": 2})").set("bf16.enabled", "true");
  const Layout layout{.ranks = 2, .accumulation = 1, .stage = 3};

  expect_same_bits(memory.train(layout, kSteps),
                   with_weights_on(memory, disk, "2").train(layout, kSteps));
}

/// A training whose gradients rest on a disk.
struct Gradients {
  const char* name;
  Layout layout;
  const char* buffers;
  bool weights;  ///< they rest there too
  std::vector<std::pair<const char*, const char*>> keys;
};

// Parts of this tiny model are smaller than the usual transfer.
TEST(GradientOffload, ToADiskChangesNoBitAlsoResumedInEitherDirection) {
  const files::TempDir disk;
  const Layout alone{.ranks = 1, .accumulation = 1, .stage = 3};
  const Layout alone_in_parts{.ranks = 1, .accumulation = 4, .stage = 3};
  const Layout two{.ranks = 2, .accumulation = 2, .stage = 2};
  const Layout stages{
      .ranks = 2, .accumulation = 4, .stage = 1, .pipeline = R"({"size": 2, "schedule": "1f1b"})"};
  const std::pair<const char*, const char*> bf16 = {"bf16.enabled", "true"};
  const std::vector<Gradients> all = {
      {"fp32, clipped", alone, "3", false, {{"gradient_clipping", "0.5"}}},
      {"bf16 with weights", alone_in_parts, "2", true, {bf16}},
      {"sums in bf16, clipped by value",
       alone_in_parts,
       "1",
       true,
       {bf16, {"data_types.grad_accum_dtype", "\"bf16\""}, {"gradient_clip_value", "0.01"}}},
      {"an average and sums of their own",
       {.ranks = 1, .accumulation = 4, .stage = 2},
       "3",
       false,
       {{"trainer.ema.decay", "0.9"}, {"gradient_reduction", "\"once\""}}},
      {"two ranks with norms", two, "3", false, {bf16, {"optimizer.type", "\"Lamb\""}}},
      {"two ranks that send bf16",
       {.ranks = 2, .accumulation = 2, .stage = 3},
       "2",
       true,
       {{"communication_data_type", "\"bf16\""}, {"optimizer.type", "\"Muon\""}}},
      {"fp16 that overflows",
       {.ranks = 2, .accumulation = 1, .stage = 1},
       "1",
       false,
       {{"fp16", R"({"enabled": true, "initial_scale_power": 32, "hysteresis": 1})"}}},
      {"a pipeline with a tied table", stages, "2", false, {{"model.dropout", "0.1"}}},
      {"ranks that share layers and tokens",
       {.ranks = 2, .accumulation = 1, .stage = 1, .tensor = 2, .sequence = true},
       "3",
       false,
       {}},
      {"ranks that share the tokens",
       {.ranks = 2, .accumulation = 2, .stage = 1, .context = 2},
       "3",
       false,
       {bf16}},
      {"an adapter", alone, "3", false, {{"adapter", R"({"type": "lora", "r": 8})"}}},
      {"recomputed blocks with rows",
       two,
       "3",
       false,
       {{"activation_checkpointing.enabled", "true"}, {"sparse_gradients", "true"}}},
  };
  for (std::size_t i = 0; i < all.size(); ++i) {
    const Gradients& row = all[i];
    SCOPED_TRACE(row.name);
    TinyRun memory = sharded_run();
    for (const auto& [key, value] : row.keys)
      memory.set(key, value);
    TinyRun on_disk = offloaded(memory, disk, row.buffers);
    on_disk.set("zero_optimization.offload_optimizer.gradients", "true")
        .set("aio.block_size", "4096");
    if (row.weights) on_disk = with_weights_on(on_disk, disk, "2");
    ASSERT_GT(planner::offload_bytes(on_disk.plan(row.layout)).gradients, 0);
    const Trace whole = memory.train(row.layout, kSteps);
    expect_same_bits(whole, on_disk.train(row.layout, kSteps));
    if (i % 3 != 0) continue;
    for (const auto& [first, second] :
         {std::pair(&memory, &on_disk), std::pair(&on_disk, &memory)}) {
      const files::TempDir saved;
      (void)first->train(row.layout, 2, saved.path());
      const Trace rest = second->train(row.layout, kSteps, {}, *checkpoint::newest(saved.path()));
      EXPECT_EQ(rest.digest, whole.digest);
    }
  }
  EXPECT_TRUE(std::filesystem::is_empty(disk.path())) << "a file remains on the disk";
}

/// A training whose activations rest on a disk, or are divided over tensor-parallel ranks.
struct Activations {
  const char* name;
  Layout layout;
  const char* buffers;  ///< nullptr: they stay in memory
  bool divided = false;
  std::vector<std::pair<const char*, const char*>> keys = {};
};

TEST(ActivationOffload, ToADiskOrDividedOverRanksChangesNoBit) {
  const files::TempDir disk;
  const Layout alone{.ranks = 1, .accumulation = 2, .stage = 0};
  const Layout shards{.ranks = 2, .accumulation = 1, .stage = 3};
  const Layout stages{
      .ranks = 2, .accumulation = 4, .stage = 1, .pipeline = R"({"size": 2, "schedule": "1f1b"})"};
  const Layout split{.ranks = 2, .accumulation = 1, .stage = 0, .tensor = 2};
  const std::vector<Activations> all = {
      {"fp32 with one buffer", alone, "1"},
      {"with dropout", alone, "2", false, {{"model.dropout", "0.1"}}},
      {"bf16", shards, "3", false, {{"bf16.enabled", "true"}}},
      {"a pipeline", stages, "2"},
      {"tensor-parallel ranks", split, "2"},
      {"divided in memory", split, nullptr, true},
      {"divided on the disk", split, "2", true, {{"bf16.enabled", "true"}}},
  };
  for (const Activations& row : all) {
    SCOPED_TRACE(row.name);
    TinyRun memory = sharded_run();
    memory.set("activation_checkpointing.granularity", "\"full\"");
    for (const auto& [key, value] : row.keys)
      memory.set(key, value);
    TinyRun away = memory;
    if (row.divided) away.set("activation_checkpointing.partition_activations", "true");
    if (row.buffers != nullptr) {
      away.set("activation_checkpointing.offload.device", "\"nvme\"")
          .set("activation_checkpointing.offload.nvme_path", "\"" + disk.path().string() + "\"")
          .set("activation_checkpointing.offload.buffer_count", row.buffers)
          .set("aio.block_size", "4096");
      ASSERT_GT(planner::offload_bytes(away.plan(row.layout)).activations, 0);
    }
    ASSERT_EQ(away.plan(row.layout).layout().divides_activations(), row.divided);

    expect_same_bits(memory.train(row.layout, kSteps), away.train(row.layout, kSteps));
  }
  EXPECT_TRUE(std::filesystem::is_empty(disk.path())) << "a file remains on the disk";
}

// Everything that can rest on the disk does, and the run goes on in memory, and the other way
// round.
TEST(Offload, OfEverythingTogetherResumesInEitherDirection) {
  const files::TempDir disk;
  const TinyRun memory = sharded_run()
                             .set("bf16.enabled", "true")
                             .set("activation_checkpointing.granularity", "\"full\"");
  TinyRun away = with_weights_on(offloaded(memory, disk, "3"), disk, "3");
  away.set("zero_optimization.offload_optimizer.gradients", "true").set("aio.block_size", "4096");
  away.set("activation_checkpointing.offload",
           R"({"device": "nvme", "nvme_path": ")" + disk.path().string() + "\"}");
  const Layout layout{.ranks = 2, .accumulation = 2, .stage = 3};
  const Trace whole = memory.train(layout, kSteps);

  expect_same_bits(whole, away.train(layout, kSteps));
  const TinyRun* const in_memory = &memory;
  const TinyRun* const on_disk = &away;
  for (const auto& [first, second] :
       {std::pair(in_memory, on_disk), std::pair(on_disk, in_memory)}) {
    const files::TempDir saved;
    (void)first->train(layout, 2, saved.path());
    const Trace rest = second->train(layout, kSteps, {}, *checkpoint::newest(saved.path()));
    EXPECT_EQ(rest.digest, whole.digest);
    EXPECT_EQ(rest.eval_losses, whole.eval_losses);
  }
}

}  // namespace
}  // namespace tessera::test
