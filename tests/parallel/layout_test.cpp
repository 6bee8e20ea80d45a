// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/layout.h"

#include <string>

#include <gtest/gtest.h>

namespace tessera::parallel {
namespace {

struct Sharding {
  int stage, data_ranks, shard_ranks;
  Residency residency;  ///< as ZeRO defines the stage
  int shards, replicas;
};

// Stage 0 shards nothing; stages 1 and 2 shard the state, and the weights are gathered after an
// update; stage 3 shards the weights over all ranks, or over groups of them. In groups of one rank
// (MiCS with mics_shard_size 1) every rank has all weights.
constexpr Sharding kShardings[] = {
    {0, 1, 1, Residency::Replicated, 1, 1},
    {0, 4, 4, Residency::Replicated, 4, 1},
    {1, 4, 4, Residency::Whole, 4, 1},
    {2, 4, 4, Residency::Whole, 4, 1},
    {3, 4, 4, Residency::Sharded, 4, 1},
    {3, 4, 2, Residency::Sharded, 2, 2},
    {3, 4, 1, Residency::Whole, 4, 1},
    {3, 1, 1, Residency::Sharded, 1, 1},
    {1, 4, 2, Residency::Whole, 4, 1},
};

TEST(Layout, DerivesEverythingThatDependsOnTheZeroStageFromOneNumber) {
  for (const Sharding& c : kShardings) {
    SCOPED_TRACE(std::to_string(c.stage) + " " + std::to_string(c.shard_ranks));
    Layout layout;
    layout.data_ranks = c.data_ranks;
    layout.shard_ranks = c.shard_ranks;
    layout.zero_stage = c.stage;

    EXPECT_EQ(layout.weight_options({}).residency, c.residency);
    EXPECT_EQ(layout.reduction_options().stage, c.stage);
    EXPECT_EQ(layout.mesh().size(mesh::Axis::DpShard), c.shards);
    EXPECT_EQ(layout.mesh().size(mesh::Axis::DpRep), c.replicas);
    EXPECT_EQ(layout.mesh().size(), c.data_ranks);
  }
}

TEST(Layout, GivesItsNumbersToTheOptionsOfWeightsAndGradients) {
  Layout layout;
  layout.accumulation = 6;
  layout.working = DType::BF16;
  layout.sums = DType::BF16;
  layout.sent = DType::U8;
  layout.reduction = Reduction::Once;
  layout.feedback = FeedbackOptions{.beta = 0.5};
  layout.bucket = 7;
  layout.sparse_rows = true;
  layout.persistence_threshold = 8;
  layout.persistent = 9;
  layout.frozen_gather = GatherForm::Int8;
  layout.tensor = TensorLayout::TwoD;
  layout.context_mode = nn::ContextMode::Ulysses;
  layout.sequence = true;

  const ReductionOptions gradients = layout.reduction_options();
  EXPECT_EQ(gradients.max_micros, 6);
  EXPECT_EQ(gradients.accumulate, DType::BF16);
  EXPECT_EQ(gradients.comm_dtype, DType::U8);
  EXPECT_EQ(gradients.mode, Reduction::Once);
  EXPECT_EQ(gradients.feedback, layout.feedback);
  EXPECT_EQ(gradients.bucket, 7);
  EXPECT_TRUE(gradients.sparse_rows);
  const WeightOptions weights =
      layout.weight_options({.frozen = [](const std::string& name) { return name == "a"; },
                             .packing = {.double_scales = true}});
  EXPECT_EQ(weights.working, DType::BF16);
  EXPECT_EQ(weights.persistence_threshold, 8);
  EXPECT_EQ(weights.persistent, 9);
  EXPECT_EQ(weights.tensor, nn::TensorMode::TwoD);
  EXPECT_EQ(weights.context, nn::ContextMode::Ulysses);
  EXPECT_TRUE(weights.sequence);
  EXPECT_TRUE(weights.tables_apart);
  EXPECT_EQ(weights.trained_gather, GatherForm::Values);
  EXPECT_EQ(weights.frozen_gather, GatherForm::Int8);
  EXPECT_TRUE(weights.frozen("a"));
  EXPECT_FALSE(weights.frozen("b"));
  EXPECT_TRUE(weights.packing.double_scales);
}

TEST(Layout, HasAMeshOfAllItsGroups) {
  Layout layout;
  layout.stages.stages = 3;
  layout.grid = {.depth = 2, .row = 2, .col = 2};
  layout.context = 2;
  layout.data_ranks = 4;

  EXPECT_EQ(layout.mesh().size(), 3 * 8 * 2 * 4);
  EXPECT_EQ(layout.mesh().size(mesh::Axis::Pp), 3);
  EXPECT_EQ(layout.mesh().size(mesh::Axis::Cp), 2);
}

TEST(Layout, DividesExpertsAmongTheRanksThatShardWeights) {
  Layout layout;
  layout.data_ranks = 8;
  layout.shard_ranks = 4;
  layout.zero_stage = 3;
  layout.expert_ranks = 2;

  EXPECT_EQ(layout.mesh().size(mesh::Axis::DpRep), 2);
  EXPECT_EQ(layout.mesh().size(mesh::Axis::DpShard), 2);
  EXPECT_EQ(layout.mesh().size(mesh::Axis::Ep), 2);
  EXPECT_EQ(layout.mesh().size(mesh::AxisSet::dp()), 8);
  EXPECT_EQ(layout.weight_options({}).experts.ep, mesh::AxisSet{mesh::Axis::Ep});
  EXPECT_EQ(Layout().weight_options({}).experts, mesh::ExpertFold());

  layout.zero_stage = 1;
  EXPECT_TRUE(layout.runs_together()) << "a rank needs the experts of the others";
  layout.expert_ranks = 1;
  EXPECT_FALSE(layout.runs_together());
}

TEST(Layout, IsAValueThatDiffersInWhatWasChanged) {
  const Layout before;

  Layout after = before;
  EXPECT_EQ(after, before);
  after.recompute.blocks = {false, true};
  EXPECT_NE(after, before);
  after = before;
  after.stages.bounds = {0, 2};
  EXPECT_NE(after, before);
  after = before;
  after.kept.states = DType::BF16;
  EXPECT_NE(after, before);
}

}  // namespace
}  // namespace tessera::parallel
