// SPDX-License-Identifier: Apache-2.0
// The predicted work and cost of passes, gathers, reductions and updates: closed forms.
#include "tessera/parallel/cost.h"

#include <cstdint>
#include <map>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "tessera/models/gpt2.h"
#include "tessera/ops/fused_adamw.h"

namespace tessera::parallel {
namespace {

constexpr std::int64_t kB = 2, kT = 16, kC = 32, kLayers = 5;

ProbedModel gpt2() {
  models::Gpt2Shape shape;
  shape.num_layers = kLayers;
  shape.hidden_size = kC;
  shape.num_heads = 4;
  shape.ffn_hidden_size = 4 * kC;
  shape.vocab_size = 96;
  shape.max_positions = kT;
  ProbedModel out;
  out.model = models::gpt2(shape);
  for (const char* name : {"input_ids", "labels"})
    out.batch.set(name,
                  at::empty({kB, kT}, at::TensorOptions().dtype(at::kLong).device(at::kMeta)));
  out.batch.sample_ids = {0, 1};
  return out;
}

/// Of a layer's linear layers, and of one product of attention over the pairs that a causal mask
/// leaves.
constexpr double kProducts = 2.0 * kB * kT * 12 * kC * kC,
                 kOfPairs = 2.0 * kB * kC * (kT * (kT + 1) / 2.0);

TEST(PassWork, OfALayerIsTheClosedForm) {
  for (const bool recompute : {false, true}) {
    const std::vector<BlockWork> work = probe_work(gpt2(), recompute, /*regions=*/false, false);
    ASSERT_EQ(work.size(), kLayers + 2U);
    for (std::size_t layer = 1; layer <= kLayers; ++layer) {
      const auto flops = [&](ActionKind kind) {
        return cost(work[layer].at(kind), Machine()).flops;
      };
      const double forward = kProducts + 2 * kOfPairs, backward = 2 * kProducts + 5 * kOfPairs;
      EXPECT_EQ(flops(ActionKind::Forward), forward);
      EXPECT_EQ(flops(ActionKind::Backward), backward + (recompute ? forward : 0));
      EXPECT_TRUE(work[layer].at(ActionKind::Forward).posted.empty()) << "one rank sends nothing";
    }
  }
}

TEST(PassCost, IsTheSumOfItsOperationsInTheTimesOfAChunk) {
  Machine machine;
  machine.memory.bytes_per_s = 1;  // seconds are bytes
  const std::vector<BlockWork> split = probe_work(gpt2(), false, false, /*split=*/true);
  std::map<ActionKind, double> bytes;
  for (const BlockWork& block : split) {
    for (const auto& [kind, work] : block) {
      EXPECT_EQ(cost(work, machine).seconds, cost(work, machine).bytes);
      bytes[kind] += cost(work, machine).bytes;
    }
  }

  const PassTimes times = pass_times(split, machine);

  EXPECT_DOUBLE_EQ(times.forward, bytes[ActionKind::Forward]);
  EXPECT_DOUBLE_EQ(times.inputs, bytes[ActionKind::BackwardInputs]);
  EXPECT_DOUBLE_EQ(times.weights, bytes[ActionKind::BackwardWeights]);
  EXPECT_GT(times.weights, 0);
}

TEST(UpdateCost, IsTheTrafficThatAdamWLogs) {
  constexpr std::int64_t kNumel = 100;
  std::vector<float> state(4 * kNumel, 1.0F);
  std::vector<std::uint16_t> working(kNumel);
  Machine machine;
  machine.memory.bytes_per_s = 1;
  const ops::OpLog log;
  ops::adamw(state.data(),
             state.data() + kNumel,
             state.data() + 2 * kNumel,
             state.data() + 3 * kNumel,
             working.data(),
             DType::BF16,
             kNumel,
             {.step = 1});

  EXPECT_EQ(update_seconds(kNumel, /*states=*/2, DType::BF16, machine), log.rows().at(0).bytes);
}

TEST(ReductionCost, OfNarrowGradientsIsAnExchangeOfTheirBytes) {
  ReductionOptions options;
  options.comm_dtype = DType::BF16;
  const comm::GroupPlace place{1, 4};
  const comm::Sent sent = reduction_cost(options, 1 << 20, /*micros=*/3, place);
  EXPECT_EQ(sent.elements, 3.0 * (1 << 20));
  EXPECT_EQ(sent.bytes_in_host, 3 * 0.75 * 2 * (1 << 20));
  options.mode = Reduction::Once;
  EXPECT_EQ(reduction_cost(options, 1 << 20, 3, place).elements, 1 << 20);
}

TEST(GatherCost, CountsTheUsesOfShardedBlocks) {
  EXPECT_EQ(gathers_of(/*sharded=*/false, 0, 5, 3), 1);
  EXPECT_EQ(gathers_of(true, 2, 5, 3), 6);
  EXPECT_EQ(gathers_of(true, 4, 5, 3), 3) << "the last block stays between forward and backward";
  EXPECT_EQ(gathers_of(true, 0, 5, 3), 4) << "the first one stays between micro-batches";
  const auto bytes = [](int stage) {
    return gather_cost(stage, 1000, DType::BF16, DType::F32, 1, {1, 2}).bytes_in_host;
  };
  EXPECT_EQ(bytes(0), 0.5 * 4000) << "sums of gradients";
  EXPECT_EQ(bytes(1), 0.5 * 2000) << "working weights";
}

}  // namespace
}  // namespace tessera::parallel
