// SPDX-License-Identifier: Apache-2.0
// labels: fast
// Sums of gradients that rest in a tier have the bits of those in memory.
#include "tessera/parallel/resting_sums.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/comm/world.h"
#include "tessera/memory/tiers/tier.h"
#include "tessera/models/gpt2.h"
#include "tessera/parallel/gradient_bytes.h"
#include "tessera/parallel/gradient_reduction.h"
#include "tessera/parallel/layout.h"
#include "tessera/parallel/planned_buffers.h"

namespace tessera::parallel {
namespace {

constexpr std::int64_t kBlock = 4096;

std::unique_ptr<memory::Tier> tier_in(const std::string& name, const files::TempDir& dir) {
  return memory::tiers().get(name)({.folder = dir.path().string(), .block_bytes = kBlock});
}

TEST(RestingSums, AreInMemoryOnlyWhileTheyAreHeld) {
  const files::TempDir dir;
  for (const char* name : {"host", "disk"}) {
    SCOPED_TRACE(name);
    const auto tier = tier_in(name, dir);
    RestingSums sums(*tier, {2, 1});
    using Use = RestingSums::Use;
    std::vector<std::size_t> numbers;
    for (int i = 0; i < 4; ++i)
      numbers.push_back(
          sums.add(i == 3 ? 1 : 0, 3000, i % 2 == 0 ? DType::F32 : DType::BF16, "a sum"));
    for (int round = 0; round < 2; ++round) {
      for (const std::size_t i : numbers)
        sums.hold(i, Use::Replace).fill_(static_cast<double>(i) + 1);
      for (const std::size_t i : numbers) {
        at::Tensor sum = sums.hold(i, Use::Change);
        const at::Tensor view = sum.narrow(0, 10, 20);
        sum = at::Tensor();
        // The view keeps the memory, which another hold shares.
        sums.hold(i, Use::Read).narrow(0, 10, 10).add_(0.5);
        EXPECT_EQ(view.sum().item<float>(), 20 * (static_cast<float>(i) + 1) + 5);
      }
      for (const std::size_t i : numbers) {
        sums.fetch((i + 1) % numbers.size());
        const at::Tensor sum = sums.hold(i, Use::Read);
        EXPECT_EQ(sum.scalar_type(), i % 2 == 0 ? at::kFloat : at::kBFloat16);
        EXPECT_EQ(sum.numel(), 3000);
        EXPECT_EQ(sum[0].item<float>(), static_cast<float>(i) + 1);
        EXPECT_EQ(sum[19].item<float>(), static_cast<float>(i) + 1.5F);
      }
    }
    EXPECT_GT(tier->use().written_bytes, 0);
  }
  EXPECT_EQ(sum_buffers(8, 1), 3);
  EXPECT_EQ(sum_buffers(8, 0), 0);
  EXPECT_EQ(sum_buffers(1, 2), 2);
}

TEST(RestingSums, OfSimilarSizesShareBuffers) {
  EXPECT_EQ(sum_class(1000, 1000), 0U);
  EXPECT_EQ(sum_class(251, 1000), 0U);
  EXPECT_EQ(sum_class(250, 1000), 1U);
  EXPECT_EQ(sum_class(1, 1000), kSumClasses - 1);
  SumsTogether together;
  for (int tile = 0; tile < 8; ++tile)
    together.count(1, /*block=*/5, /*uses=*/1);
  together.count(0, 5, 1);
  together.count(0, 4, 2);

  EXPECT_EQ(together.most(), (OfSumClasses{2, 8, 0, 0}));
}

TEST(RestingSums, HaveTheSquaresOfTheNorm) {
  const at::Tensor sum = at::randn({2500 * kChunk});
  std::vector<double> squares;
  add_chunk_squares(sum, squares);

  ASSERT_EQ(squares.size(), 2500U);
  const at::Tensor chunk = sum.narrow(0, 2400 * kChunk, kChunk).to(at::kDouble);
  EXPECT_NEAR(squares[2400], (chunk * chunk).sum().item<double>(), 1e-6);
}

/// How gradients are summed.
struct Setting {
  int ranks = 1, micros = 1;
  ReductionOptions options = {};
  int buffers = 3;
  double clamp = 0;
};

/// The sums and their norms, by rank.
struct Result {
  std::map<std::pair<int, int>, at::Tensor> shards;
  std::map<int, std::vector<double>> squares, clamped;
};

models::Gpt2Shape tiny() {
  models::Gpt2Shape shape;
  shape.num_layers = 3;
  shape.hidden_size = 40;
  shape.num_heads = 4;
  shape.ffn_hidden_size = 72;
  shape.vocab_size = 256;
  shape.max_positions = 64;
  return shape;
}

/// Two steps; the results of the second, and what its sums moved.
Result reduced(const Setting& setting,
               const std::string& tier_name,
               memory::TierUse* use = nullptr) {
  Result out;
  std::mutex mutex;
  comm::run_threads(setting.ranks, [&](comm::World& world) {
    at::set_num_threads(1);
    const files::TempDir dir;
    const auto tier = tier_name.empty() ? nullptr : tier_in(tier_name, dir);
    WeightOptions weights;
    weights.residency = setting.options.stage == 3 ? Residency::Sharded : Residency::Whole;
    ModelInstance model(models::gpt2(tiny()), weights, world);
    ReductionOptions options = setting.options;
    options.max_micros = setting.micros;
    GradientReduction gradients(
        world, model, options, {.tier = tier.get(), .buffers = setting.buffers});
    const auto random = at::make_generator<at::CPUGeneratorImpl>(7 + world.rank());
    for (int step = 0; step < 2; ++step) {
      const memory::TierUse before = tier == nullptr ? memory::TierUse() : tier->use();
      const std::vector<Action> actions = accumulation_schedule(setting.micros);
      gradients.begin(actions);
      for (int micro = 0; micro < setting.micros; ++micro) {
        for (int b = model.num_blocks() - 1; b >= 0; --b) {
          const BlockRun run{b, micro, setting.micros};
          gradients.before(actions.back(), run);
          for (const auto& param : model.params(b))
            param->grad().write(at::randn(param->info().local_shape(), random, at::kFloat));
          gradients.after(actions.back(), run);
        }
      }
      gradients.finish();
      const std::vector<double> squares = gradients.chunk_sums();
      std::vector<double> clamped;
      if (setting.clamp > 0) {
        gradients.clamp(setting.clamp);
        clamped = gradients.chunk_sums();
      }
      const std::lock_guard lock(mutex);
      out.squares[world.rank()] = squares;
      out.clamped[world.rank()] = clamped;
      for (std::size_t g = 0; g < model.groups().size(); ++g)
        out.shards[{world.rank(), static_cast<int>(g)}] =
            gradients.shard(static_cast<int>(g)).clone();
      if (tier != nullptr && use != nullptr) *use = tier->use() - before;
    }
    world.transport().barrier(world.everyone(), TESSERA_HERE("end of the test"))->wait();
  });
  return out;
}

TEST(GradientReductions, WithSumsInATierGiveTheBitsOfSumsInMemory) {
  constexpr DType kBf16 = DType::BF16;
  const std::vector<Setting> all = {
      {.ranks = 1, .micros = 1, .options = {.stage = 3}},
      {.ranks = 1, .micros = 3, .options = {.stage = 3}, .buffers = 1},
      {.ranks = 1, .micros = 1, .options = {.stage = 1, .accumulate = kBf16}, .buffers = 2},
      {.ranks = 1, .micros = 2, .options = {.stage = 1, .accumulate = kBf16}, .clamp = 0.5},
      {.ranks = 1, .micros = 3, .options = {.stage = 1, .mode = Reduction::Once}},
      {.ranks = 1, .micros = 2, .options = {.stage = 2, .mode = Reduction::Once}, .buffers = 1},
      {.ranks = 1, .micros = 2, .options = {.stage = 2, .comm_dtype = kBf16}},
      {.ranks = 2, .micros = 1, .options = {.stage = 1}},
      {.ranks = 2, .micros = 3, .options = {.stage = 3}, .buffers = 2, .clamp = 0.5},
      {.ranks = 3, .micros = 2, .options = {.stage = 2, .accumulate = kBf16}},
      {.ranks = 3, .micros = 2, .options = {.stage = 3, .mode = Reduction::Once}, .buffers = 1},
      {.ranks = 2, .micros = 2, .options = {.stage = 3, .comm_dtype = DType::U8}},
      {.ranks = 2, .micros = 2, .options = {.stage = 1, .sparse_rows = true}},
  };
  for (std::size_t i = 0; i < all.size(); ++i) {
    SCOPED_TRACE("setting " + std::to_string(i));
    memory::TierUse use;
    const Result memory = reduced(all[i], ""),
                 tier = reduced(all[i], i % 2 == 0 ? "disk" : "host", &use);
    EXPECT_GT(use.written_bytes, 0);
    ASSERT_EQ(tier.shards.size(), memory.shards.size());
    for (const auto& [key, shard] : memory.shards)
      EXPECT_TRUE(at::equal(shard, tier.shards.at(key))) << key.first << ", " << key.second;
    EXPECT_EQ(memory.squares, tier.squares);
    EXPECT_EQ(memory.clamped, tier.clamped);
  }
}

// What is still in a buffer is not read again.
TEST(GradientBytes, SayWhatAStepMovesThroughTheTier) {
  for (const int micros : {1, 3}) {
    Layout layout;
    layout.zero_stage = 3;
    layout.micro_batch = 1;
    layout.accumulation = micros;
    layout.offload = StateOffload{.folder = "/tmp", .gradients = true};
    layout.disk.block_bytes = kBlock;
    const GradientBytes planned =
        gradient_bytes(plan_stage(models::gpt2(tiny()), layout, ParameterRules(), 0),
                       layout,
                       /*tokens=*/1 << 20,
                       /*ids=*/1 << 30);
    memory::TierUse use;
    (void)reduced({.ranks = 1, .micros = micros, .options = {.stage = 3}}, "disk", &use);

    EXPECT_EQ(use.written_bytes, planned.written) << micros;
    EXPECT_LE(use.read_bytes, planned.read) << micros;
    EXPECT_GE(use.read_bytes, planned.read - (micros + 1) * planned.sums) << micros;
  }
}

}  // namespace
}  // namespace tessera::parallel
