// SPDX-License-Identifier: Apache-2.0
// labels: fast
// A training with experts on several ranks, compared with the same training on one rank and with
// all experts on every rank.
#include <string>
#include <vector>

#include "parallel/toy_experts.h"
#include <gtest/gtest.h>

namespace tessera::parallel {
namespace {

using toy::Result;
using toy::train;
using toy::Training;

/// The layouts of four ranks, and one of eight, whose experts are divided.
std::vector<Training> divided() {
  return {
      {.ranks = 4, .ep = 2}, {.ranks = 4, .ep = 4}, {.ranks = 2, .ep = 2}, {.ranks = 8, .ep = 4}};
}

std::string text(const Training& how) {
  return std::to_string(how.ranks) + " ranks, experts divided among " + std::to_string(how.ep) +
         ", stage " + std::to_string(how.reduction.stage);
}

TEST(ExpertTraining, GivesTheBitsOfOneRankInEveryStage) {
  const Result one = train({});
  ASSERT_GT(one.norms.back(), 0.0);
  for (const int stage : {0, 1, 2, 3}) {
    for (Training how : divided()) {
      how.reduction.stage = stage;
      EXPECT_EQ(train(how), one) << text(how);
    }
  }
}

// One rank and four differ where each rank adds its own gradients first, or rounds sums after every
// accumulation step; layouts of the same four ranks do not.
TEST(ExpertTraining, GivesTheBitsOfUndividedExpertsForEveryReduction) {
  const std::vector<ReductionOptions> reductions = {
      {.mode = Reduction::Once},
      {.accumulate = DType::BF16},
      {.mode = Reduction::Once, .accumulate = DType::BF16},
      {.comm_dtype = DType::BF16},
      {.mode = Reduction::Once, .comm_dtype = DType::BF16},
      {.comm_dtype = DType::U8},
  };
  for (std::size_t i = 0; i < reductions.size(); ++i) {
    for (const int stage : {0, 1, 2, 3}) {
      Training how{.ranks = 4, .reduction = reductions[i]};
      how.reduction.stage = stage;
      const Result undivided = train(how);
      for (const int ep : {2, 4}) {
        how.ep = ep;
        EXPECT_EQ(train(how), undivided) << text(how) << ", reduction " << i;
      }
    }
  }
}

TEST(ExpertTraining, GivesTheSameBitsInGroupsThatHoldAllWeights) {
  const Result one = train({});
  for (const int ep : {1, 2}) {
    Training how{.ranks = 4, .ep = ep, .shards = 2, .reduction = {.stage = 3}};
    EXPECT_EQ(train(how), one) << text(how);
  }
}

// Each matrix of an expert is a parameter of its own for these rules.
TEST(ExpertTraining, GivesTheSameBitsForRulesOfWholeMatrices) {
  for (const std::string optimizer : {"LAMB", "LARS", "Muon", "Adafactor"}) {
    const Result one = train({.optimizer = optimizer});
    for (const int stage : {0, 2, 3}) {
      for (const int ep : {2, 4}) {
        const Training how{
            .ranks = 4, .ep = ep, .reduction = {.stage = stage}, .optimizer = optimizer};
        EXPECT_EQ(train(how), one) << optimizer << ", " << text(how);
      }
    }
  }
}

// The last micro-batch has no samples: one of the ranks takes part in exchanges alone.
TEST(ExpertTraining, TakesPartWithoutSamplesAlsoWhereBlocksRunAgainOrWeightsComeLater) {
  const Result one = train({});
  for (const bool recompute : {false, true}) {
    for (const bool splits : {false, true}) {
      const Training how{.ranks = 4,
                         .ep = 4,
                         .reduction = {.stage = 3},
                         .recompute = recompute,
                         .splits_backward = splits};
      EXPECT_EQ(train(how), one) << "again " << recompute << ", weights later " << splits;
    }
  }
}

TEST(ExpertTraining, GoesOnFromASaveOfAnyDivision) {
  for (const std::string optimizer : {"AdamW", "Adafactor"}) {
    const Result whole = train({.optimizer = optimizer}, 0, 4);
    const Result half =
        train({.ranks = 4, .ep = 2, .reduction = {.stage = 1}, .optimizer = optimizer}, 0, 2);
    const checkpoint::Checkpoint saved = toy::Saved::of(half, 2);
    for (const int ep : {1, 4}) {
      const Training how{.ranks = 4,
                         .ep = ep,
                         .reduction = {.stage = ep == 1 ? 2 : 3},
                         .optimizer = optimizer,
                         .from = &saved};
      EXPECT_EQ(train(how, 2, 2).tensors, whole.tensors) << optimizer << ", " << text(how);
    }
  }
}

}  // namespace
}  // namespace tessera::parallel
