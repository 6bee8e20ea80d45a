// SPDX-License-Identifier: Apache-2.0
// labels: fast
// Steps of a model with weights in tiles: the same bits in memory and on disks, one tile at a time.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "parallel/tiny_gpt2.h"
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "tessera/base/files.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/comm/world.h"
#include "tessera/memory/tiers/tier.h"
#include "tessera/optim/rule.h"
#include "tessera/parallel/executor.h"
#include "tessera/parallel/gradient_reduction.h"
#include "tessera/parallel/sharded_optimizer.h"
#include "tessera/parallel/weight_gather.h"

namespace tessera::parallel {
namespace {

/// Where the tiles are.
struct TiledSetting {
  const char* name;
  int ranks, stage;
  bool disk;
  int buffers = 3;
};

/// The samples of a step; with more ranks the others have none.
constexpr int kSamples = 2;

/// The tied table and the products of the layers.
std::int64_t tiles_of_gpt2(const ParamInfo& info) {
  if (info.name == "wte.weight") return 2;
  return info.name.find(".mlp.") != std::string::npos && info.shape.size() == 2 ? 2 : 1;
}

nn::Batch tokens_of(int sample) {
  nn::Batch batch;
  batch.set("input_ids", (at::arange(8, at::kLong) * 7 + sample * 13).remainder(64).view({1, 8}));
  batch.set("labels", (at::arange(8, at::kLong) * 5 + sample * 3).remainder(64).view({1, 8}));
  batch.sample_ids = {sample};
  return batch;
}

nn::Batch no_tokens() {
  nn::Batch batch;
  for (const char* name : {"input_ids", "labels"})
    batch.set(name, at::empty({0, 8}, at::kLong));
  return batch;
}

using Values = std::map<std::string, std::vector<float>>;

/// Two steps of two samples; returns what a checkpoint would hold.
Values tiled_steps(const TiledSetting& setting, bool tiles, DType working) {
  Values out;
  std::mutex mutex;
  config::Problems problems;
  config::Origins origins;
  const auto rule = optim::rule_factory("AdamW")(json::Value(), problems, origins);
  comm::run_threads(setting.ranks, [&](comm::World& world) {
    at::set_num_threads(1);
    const files::TempDir folder;
    const auto tier = memory::tiers().get("disk")(
        {.folder = folder.path().string(), .block_bytes = 4096, .transfers = 2});
    WeightOptions options;
    options.working = working;
    if (setting.stage > 0) options.residency = Residency::Whole;
    if (setting.stage == 3) options.residency = Residency::Sharded;
    if (setting.disk) {
      options.residency = Residency::Resting;
      options.tier = tier.get();
      options.tier_buffers = setting.buffers;
    }
    if (tiles) options.tiles = tiles_of_gpt2;
    ModelInstance model(models::gpt2(tiny_gpt2()), options, world);
    EXPECT_EQ(model.num_parameters(), tiny_gpt2().num_parameters());
    ShardedOptimizer optimizer(world, model, *rule, setting.stage, {}, {}, false, {});
    optimizer.fill([](const ParamInfo& info, std::int64_t begin, std::int64_t end, float* to) {
      // Each value depends on its place in the whole parameter.
      const auto seed = static_cast<std::int64_t>(std::hash<std::string>()(info.name) % 97);
      for (std::int64_t i = begin; i < end; ++i)
        *to++ = static_cast<float>((i * 37 + seed) % 101 - 50) / 500.0F;
    });
    WeightGather gather(model, {});
    const int micros = std::max(1, kSamples / setting.ranks);
    GradientReduction gradients(world, model, {.stage = setting.stage, .max_micros = micros});
    Executor executor(model, {&gather, &gradients});
    for (int step = 1; step <= 2; ++step) {
      optimizer.wait_weights();
      const StepInput input{
          .num_micros = micros,
          .load =
              [&](int micro) {
                const int sample = micro * setting.ranks + world.rank();
                return sample < kSamples ? tokens_of(10 * step + sample) : no_tokens();
              },
          .global_denominators = [](const auto&) { return std::vector<double>{16.0}; }};
      executor.train(accumulation_schedule(micros), input);
      gradients.finish();
      optimizer.update(gradients, {.lr = 1e-2, .step = step});
    }
    optimizer.wait_weights();
    const auto pieces = optimizer.pieces(/*for_save=*/true);
    {
      const std::lock_guard lock(mutex);
      for (const checkpoint::PieceBytes& piece : pieces) {
        if (piece.dtype != DType::F32) continue;
        std::size_t numel = 1;
        for (const std::int64_t size : piece.shape)
          numel *= static_cast<std::size_t>(size);
        std::vector<float>& values = out[piece.name];
        values.resize(numel, -1e30F);
        EXPECT_EQ(piece.piece.box.numel(), static_cast<std::int64_t>(numel)) << piece.name;
        const auto part = std::as_writable_bytes(std::span(values).subspan(
            static_cast<std::size_t>(piece.piece.begin),
            static_cast<std::size_t>(piece.piece.end - piece.piece.begin)));
        if (piece.source) {
          piece.source->read(0, part);
        } else {
          std::ranges::copy(piece.bytes, part.begin());
        }
      }
    }
    optimizer.release_pieces();
    world.transport().barrier(world.everyone(), TESSERA_HERE("end of the test"))->wait();
  });
  return out;
}

TEST(TiledTraining, HasTheSameBitsWhereverTheTilesAre) {
  for (const DType working : {DType::F32, DType::BF16}) {
    SCOPED_TRACE(name(working));
    const Values memory = tiled_steps({"memory", 1, 0, false}, true, working);
    EXPECT_GT(memory.size(), 40U);
    for (const TiledSetting& setting : {TiledSetting{"two ranks, stage 1", 2, 1, false},
                                        TiledSetting{"two ranks, stage 2", 2, 2, false},
                                        TiledSetting{"two ranks, stage 3", 2, 3, false},
                                        TiledSetting{"four ranks, two of them idle", 4, 3, false},
                                        TiledSetting{"the same on disks", 4, 3, true, 1},
                                        TiledSetting{"a disk", 1, 3, true},
                                        TiledSetting{"a disk with one buffer", 1, 3, true, 1},
                                        TiledSetting{"the disks of two ranks", 2, 3, true},
                                        TiledSetting{"the same with one buffer", 2, 3, true, 1}}) {
      SCOPED_TRACE(setting.name);
      EXPECT_EQ(tiled_steps(setting, true, working), memory);
    }
  }
}

// Moments are sums of gradients, so that they show the rounding of the sums over tiles.
TEST(TiledTraining, IsThatOfWholeWeightsWithinRounding) {
  const TiledSetting memory{"memory", 1, 0, false};
  const Values tiled = tiled_steps(memory, true, DType::F32),
               whole = tiled_steps(memory, false, DType::F32);
  ASSERT_EQ(tiled.size(), whole.size());
  for (const auto& [name, values] : whole) {
    if (!name.starts_with("optimizer.exp_avg.")) continue;
    const std::vector<float>& ours = tiled.at(name);
    ASSERT_EQ(ours.size(), values.size()) << name;
    float largest = 0, difference = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      largest = std::max(largest, std::abs(values[i]));
      difference = std::max(difference, std::abs(values[i] - ours[i]));
    }
    EXPECT_LE(difference, 1e-4F * largest) << name;
  }
}

}  // namespace
}  // namespace tessera::parallel
