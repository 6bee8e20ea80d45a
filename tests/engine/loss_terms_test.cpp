// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/loss_terms.h"

#include <gtest/gtest.h>

namespace tessera::engine {
namespace {

TEST(LossTerms, AreOrderedAlikeOnRanksThatSawDifferentOnes) {
  comm::run_threads(2, [](comm::World& world) {
    std::vector<TermKey> mine = {{.block = 1, .name = "size"}};
    if (world.rank() == 0) mine = {{.block = 5, .name = "loss"}, {.block = 2, .name = "größe \n"}};

    const std::vector<TermKey> all = agree_on_terms(world, world.everyone(), mine, 5);

    ASSERT_EQ(all.size(), 3U);
    EXPECT_EQ(all[0].name, "loss");  // block 5 is the objective
    EXPECT_EQ(all[1].name, "size");
    EXPECT_EQ(all[2].name, "größe \n");
  });
}

TEST(LossTerms, OfASingleNameAreTheLossItself) {
  comm::run_threads(1, [](comm::World& world) {
    TermReduction reduction(world, 1, 0);
    parallel::StepOutput out;
    out.denominators = {4};
    out.terms = {{.block = 0, .name = "loss", .values = {0.25, 0.5}}};

    EXPECT_TRUE(reduction.has_new(out));
    const Metrics metrics = reduction.reduce(out, 2, 0.75, true);

    EXPECT_FALSE(reduction.has_new(out));
    ASSERT_EQ(metrics.size(), 1U);
    EXPECT_EQ(metrics[0].mean, 0.75);
    EXPECT_EQ(metrics[0].denominator, 4);
    EXPECT_EQ(metrics_text(metrics), "");
  });
}

TEST(LossTerms, OfOneNameInSeveralBlocksAreAddedUp) {
  comm::run_threads(1, [](comm::World& world) {
    TermReduction reduction(world, 1, 2);
    parallel::StepOutput out;
    out.denominators = {4, 2};
    out.terms = {{.block = 0, .name = "size", .denominator = 1, .values = {1, 2}},
                 {.block = 1, .name = "size", .denominator = 1, .values = {10, 20}},
                 {.block = 2, .name = "loss", .values = {0.25, 0.5}}};

    const Metrics metrics = reduction.reduce(out, 2, 33.75, true);

    ASSERT_EQ(metrics.size(), 2U);
    EXPECT_EQ(find_metric(metrics, "loss")->mean, 0.75);
    EXPECT_EQ(find_metric(metrics, "size")->mean, 33);
    EXPECT_EQ(find_metric(metrics, "size")->denominator, 2);
    EXPECT_EQ(find_metric(metrics, "other"), nullptr);
    EXPECT_EQ(metrics_text(metrics), " | size 33.0000");
  });
}

}  // namespace
}  // namespace tessera::engine
