// SPDX-License-Identifier: Apache-2.0
// The bytes that each part of a training predicts for a stage, compared with what the part
// allocates: dense blocks, and experts whose buffers have ranks of their own.
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "parallel/toy_experts.h"
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tessera/memory/caching_allocator.h"
#include "tessera/memory/ledger.h"
#include "tessera/parallel/gradient_bytes.h"
#include "tessera/parallel/layout.h"
#include "tessera/parallel/planned_buffers.h"
#include "tessera/parallel/saved_bytes.h"
#include "tessera/parallel/state_bytes.h"
#include "tessera/parallel/weight_bytes.h"

namespace tessera::parallel {
namespace {

/// Bytes of the first rank.
struct Bytes {
  std::int64_t weights = 0, states = 0, sums = 0, in_flight = 0;
  bool operator==(const Bytes&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Bytes& bytes) {
  return out << fmt::format("weights {}, states {}, sums {}, in flight {}",
                            bytes.weights,
                            bytes.states,
                            bytes.sums,
                            bytes.in_flight);
}

std::unique_ptr<optim::Rule> rule_of(const std::string& name) {
  config::Problems problems;
  config::Origins origins;
  return optim::rule_factory(name)(json::Value(), problems, origins);
}

Bytes predicted(const Layout& layout, const optim::Rule& rule) {
  const PlannedStage stage = plan_stage(toy::model(), layout, {}, /*stage=*/0);
  const GradientBytes gradients =
      gradient_bytes(stage, layout, layout.micro_batch * toy::kT, /*ids=*/1 << 30);
  return {weight_bytes(stage, layout.gather, layout.accumulation, {}).resting,
          state_bytes(stage, layout, rule, /*frozen_in_saves=*/true).memory,
          gradients.sums,
          gradients.in_flight};
}

/// A step of the same training as threads.
Bytes allocated(const Layout& layout) {
  Bytes out;
  toy::Training how{.ranks = layout.data_ranks,
                    .ep = layout.expert_ranks,
                    .shards = layout.shard_ranks,
                    .reduction = layout.reduction_options()};
  how.usage = [&](const memory::Usage& usage) {
    const auto of = [&](memory::Tag tag) { return usage.current[static_cast<std::size_t>(tag)]; };
    out = {of(memory::Tag::Parameters),
           of(memory::Tag::Optimizer),
           of(memory::Tag::Gradients),
           of(memory::Tag::GradientsInFlight)};
  };
  toy::train(how, 0, 1);
  return out;
}

class StageBytes : public testing::Test {
 protected:
  /// Allocations of tensors are counted by this allocator.
  static void SetUpTestSuite() { memory::install_caching_allocator(); }
};

Layout layout_of(int ranks, int ep, int stage) {
  Layout out;
  out.data_ranks = out.shard_ranks = ranks;
  out.expert_ranks = ep;
  out.zero_stage = stage;
  out.micro_batch = 1;
  out.accumulation = toy::kMicros / ranks;
  out.stages.bounds = {0, 5};
  return out;
}

constexpr std::array<std::array<int, 2>, 7> kRanks = {
    {{1, 1}, {2, 1}, {2, 2}, {4, 1}, {4, 2}, {4, 4}, {8, 4}}};  // data-parallel ranks, and ep

TEST_F(StageBytes, AreWhatTheFirstRankAllocatesHoweverExpertsAreDivided) {
  const auto rule = rule_of("AdamW");
  for (const auto [ranks, ep] : kRanks) {
    for (const int stage : {0, 1, 2, 3}) {
      for (const Reduction reduction : {Reduction::Each, Reduction::Once}) {
        Layout layout = layout_of(ranks, ep, stage);
        layout.reduction = reduction;
        EXPECT_EQ(predicted(layout, *rule), allocated(layout))
            << ranks << " ranks, experts divided among " << ep << ", stage " << stage
            << ", reduction " << static_cast<int>(reduction);
      }
    }
  }
}

TEST_F(StageBytes, OfGroupsThatHoldAllWeightsAreTheRanksOfTheGroup) {
  const auto rule = rule_of("AdamW");
  for (const int ep : {1, 2}) {
    Layout layout = layout_of(4, ep, 3);
    layout.shard_ranks = 2;
    EXPECT_EQ(predicted(layout, *rule), allocated(layout)) << ep;
  }
}

// By hand: a matrix of an expert has 36 x 36 values, which take two chunks of 1024, and its bias
// one chunk. Five experts divided among two ranks are three on the first one.
TEST_F(StageBytes, OfDividedExpertsCountTheExpertsOfTheRank) {
  const Layout layout = layout_of(4, 2, 1);
  const PlannedStage stage = plan_stage(toy::model(), layout, {}, /*stage=*/0);
  std::int64_t experts = 0;
  for (const PlannedBuffer& buffer : stage.buffers) {
    if (buffer.group.name.find("(experts)") == std::string::npos) {
      EXPECT_EQ(buffer.ranks.fold, 4) << buffer.group.name;
      EXPECT_EQ(buffer.ranks.slices, 1) << buffer.group.name;
      continue;
    }
    ++experts;
    EXPECT_EQ(buffer.ranks.fold, 2);
    EXPECT_EQ(buffer.ranks.slices, 2);
    EXPECT_EQ(buffer.layout.numel(), 3 * (2 + 1) * 1024 + 1024);  // and padding to two shards
    EXPECT_EQ(buffer.owned.numel, buffer.layout.numel() / 2);
  }
  EXPECT_EQ(experts, 2);
}

// A checkpoint does not depend on the layout: two mixing layers, two layers of five experts, the
// scale, each with two moments, in fp32.
TEST(SavedBytes, AreThoseOfAllExperts) {
  const auto rule = rule_of("AdamW");
  constexpr std::int64_t kC = toy::kC, kE = toy::kE;
  constexpr std::int64_t kValues = 2 * kC * kC + 2 * kE * (kC * kC + kC) + kC;
  for (const auto [ranks, ep] : kRanks) {
    const Layout layout = layout_of(ranks, ep, 1);
    EXPECT_EQ(saved_bytes(toy::model(), {.data_ranks = layout.data_ranks}, {}, *rule, true),
              3 * 4 * kValues);
  }
}

// Without a disk a save widens states of 16 and 8 bits in memory, and from a disk as it reads them.
// Counted in fp32: a master and two moments of each value.
TEST_F(StageBytes, OfSavesFromADiskWidenStatesAsTheyAreRead) {
  const auto saved = [](const char* rule, DType states, bool on_disk) {
    Layout layout;
    layout.zero_stage = 1;
    layout.micro_batch = layout.accumulation = 1;
    layout.working = DType::BF16;
    layout.kept.states = states;
    layout.disk.block_bytes = 4096;
    if (on_disk) layout.offload = StateOffload{.folder = "/tmp"};
    return state_bytes(plan_stage(toy::model(), layout, {}, /*stage=*/0),
                       layout,
                       *rule_of(rule),
                       /*frozen_in_saves=*/true);
  };
  const StateBytes wide = saved("AdamW", DType::F32, true),
                   memory = saved("AdamW", DType::BF16, false),
                   narrow = saved("AdamW", DType::BF16, true),
                   eight = saved("AdamW8bit", DType::F32, true);

  EXPECT_EQ(wide.widened_by_saves, 0);
  EXPECT_GT(memory.widened_by_saves, 0);
  EXPECT_EQ(narrow.widened_by_saves, 0);
  EXPECT_EQ(narrow.saved_from_disk, wide.saved_from_disk);
  EXPECT_LT(narrow.disk, wide.disk);
  EXPECT_EQ(eight.widened_by_saves, 0);
  EXPECT_EQ(eight.saved_from_disk, wide.saved_from_disk);
}

}  // namespace
}  // namespace tessera::parallel
