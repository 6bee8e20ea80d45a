// SPDX-License-Identifier: Apache-2.0
// labels: slow
// timeout: 300
// Updates through a disk that go on during the backward pass, against updates in memory after it.
#include <algorithm>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "support/train_runs.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/parallel/layout.h"
#include "tessera/planner/memory.h"

namespace tessera::test {
namespace {

constexpr std::int64_t kSteps = 4;

using Keys = std::vector<std::pair<const char*, const char*>>;

TinyRun in_memory(const Keys& keys) {
  TinyRun run;
  run.set("zero_optimization.stage3_param_persistence_threshold", "0")
      .set("gradient_clipping", "0");
  for (const auto& [key, value] : keys)
    run.set(key, value);
  return run;
}

TinyRun on_disk(TinyRun run, const files::TempDir& disk, const char* buffers, bool gradients) {
  run.set("zero_optimization.offload_optimizer.device", "\"nvme\"")
      .set("zero_optimization.offload_optimizer.nvme_path", "\"" + disk.path().string() + "\"")
      .set("zero_optimization.offload_optimizer.buffer_count", buffers)
      .set("zero_optimization.sub_group_size", "1024");
  if (gradients) {
    run.set("zero_optimization.offload_optimizer.gradients", "true").set("aio.block_size", "4096");
  }
  return run;
}

struct Streamed {
  const char* name;
  Layout layout;
  const char* buffers;
  bool gradients;
  Keys keys;
};

TEST(StreamedUpdates, ChangeNoBitAlsoResumedInEitherDirection) {
  const files::TempDir disk;
  const std::pair<const char*, const char*> bf16 = {"bf16.enabled", "true"};
  const auto stages = [](const char* pipeline) {
    return Layout{.ranks = 2, .accumulation = 4, .stage = 1, .pipeline = pipeline};
  };
  const std::vector<Streamed> all = {
      {"one rank in fp32", {.ranks = 1, .accumulation = 2, .stage = 1}, "1", false, {}},
      {"two ranks", {.ranks = 2, .accumulation = 1, .stage = 1}, "3", false, {bf16}},
      {"two ranks with parts", {.ranks = 2, .accumulation = 2, .stage = 2}, "2", false, {bf16}},
      {"two ranks with parts of weights",
       {.ranks = 2, .accumulation = 2, .stage = 3},
       "3",
       false,
       {bf16, {"data_types.grad_accum_dtype", "\"bf16\""}}},
      {"a part of the states",
       {.ranks = 1, .accumulation = 1, .stage = 3},
       "3",
       false,
       {bf16, {"zero_optimization.offload_optimizer.ratio", "0.5"}}},
      {"gradients too", {.ranks = 2, .accumulation = 2, .stage = 2}, "1", true, {bf16}},
      {"gradients of one rank",
       {.ranks = 1, .accumulation = 2, .stage = 3},
       "3",
       true,
       {bf16, {"data_types.grad_accum_dtype", "\"bf16\""}}},
      {"an average with dropout and recomputation",
       {.ranks = 1, .accumulation = 2, .stage = 2},
       "3",
       false,
       {{"trainer.ema.decay", "0.9"},
        {"model.dropout", "0.1"},
        {"activation_checkpointing.enabled", "true"}}},
      {"1f1b", stages(R"({"size": 2, "schedule": "1f1b"})"), "2", false, {bf16}},
      {"zero-bubble", stages(R"({"size": 2, "schedule": "zb-h1"})"), "3", true, {}},
      {"interleaved",
       stages(R"({"size": 2, "schedule": "interleaved", "chunks": 2})"),
       "2",
       false,
       {{"model.num_layers", "4"}}},
      {"tensor parallelism",
       {.ranks = 2, .accumulation = 1, .stage = 1, .tensor = 2},
       "3",
       false,
       {bf16}},
      {"states in 8 bits",
       {.ranks = 2, .accumulation = 1, .stage = 1},
       "3",
       false,
       {{"optimizer.type", "\"AdamW8bit\""}}},
  };
  for (std::size_t i = 0; i < all.size(); ++i) {
    const Streamed& row = all[i];
    SCOPED_TRACE(row.name);
    const TinyRun memory = in_memory(row.keys);
    const TinyRun streams = on_disk(memory, disk, row.buffers, row.gradients);
    const parallel::Layout planned = streams.plan(row.layout).layout();
    ASSERT_TRUE(planned.streamed_updates);
    const Trace whole = memory.train(row.layout, kSteps), other = streams.train(row.layout, kSteps);
    expect_same_bits(whole, other);
    for (const parallel::EarlyCounts& step : other.early)
      EXPECT_GT(step.committed, 0);
    if (i % 4 != 0) continue;
    for (const auto& [first, second] :
         {std::pair(&memory, &streams), std::pair(&streams, &memory)}) {
      const files::TempDir saved;
      (void)first->train(row.layout, 2, saved.path());
      const Trace rest = second->train(row.layout, kSteps, {}, *checkpoint::newest(saved.path()));
      EXPECT_EQ(rest.digest, whole.digest);
      EXPECT_EQ(rest.eval_losses, whole.eval_losses);
    }
  }
  EXPECT_TRUE(std::filesystem::is_empty(disk.path())) << "a file remains on the disk";
}

// Histograms show weights before their update together with whole gradients.
TEST(StreamedUpdates, WaitInStepsWithHistograms) {
  const files::TempDir disk;
  const TinyRun memory = in_memory({{"tensorboard", R"({"enabled": true, "histograms": 2})"}});
  const Layout layout{.ranks = 2, .accumulation = 1, .stage = 2};
  const Trace whole = memory.train(layout, kSteps),
              other = on_disk(memory, disk, "3", true).train(layout, kSteps);
  expect_same_bits(whole, other);
  ASSERT_EQ(std::ssize(other.early), kSteps);
  for (std::size_t i = 0; i < other.early.size(); ++i)
    EXPECT_EQ(other.early[i].committed > 0, i % 2 == 0) << i;
}

// The weights have changed when the norm is known, so that the step cannot be made again.
TEST(StreamedUpdates, NameTheGradientThatIsNotFinite) {
  const files::TempDir disk;
  const Layout layout{.ranks = 2, .accumulation = 2, .stage = 1};
  const auto refusal_of = [&](const TinyRun& run) -> std::string {
    try {
      (void)run.train(layout, kSteps);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  const TinyRun memory = in_memory({{"optimizer.params.lr", "1e30"}});
  const std::string why = refusal_of(memory);
  EXPECT_THAT(why, testing::HasSubstr("diverged at step"));
  EXPECT_EQ(refusal_of(on_disk(memory, disk, "3", false)), why);
}

TEST(StreamedUpdates, AreNotMadeWhereLaterNumbersChangeTheUpdate) {
  const files::TempDir disk;
  const Layout layout{.ranks = 1, .accumulation = 1, .stage = 1};
  for (const Keys& keys : {Keys{{"gradient_clipping", "1.0"}},
                           Keys{{"gradient_clip_value", "0.1"}},
                           Keys{{"trainer.on_nonfinite", "\"skip\""}},
                           Keys{{"fp16", R"({"enabled": true})"}}}) {
    const TinyRun run = on_disk(in_memory(keys), disk, "3", false);
    EXPECT_FALSE(run.plan(layout).layout().streamed_updates) << keys.front().first;
  }
}

}  // namespace
}  // namespace tessera::test
