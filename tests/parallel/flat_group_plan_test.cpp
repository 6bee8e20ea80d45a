// SPDX-License-Identifier: Apache-2.0
// Tests which parameters share a flat buffer, and which range of it a rank updates.
#include "tessera/parallel/flat_group_plan.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera::parallel {
namespace {

using testing::ElementsAre;
using testing::Pair;

std::shared_ptr<const ParamInfo> param(const std::string& name, Shape shape, bool tied = false) {
  ParamInfo info;
  info.name = name;
  info.shape = std::move(shape);
  info.axes.assign(info.shape.size(), LogicalAxis::None);
  info.matrix_shape = info.shape;
  info.tied = tied;
  return std::make_shared<const ParamInfo>(std::move(info));
}

// An embedding whose table the head uses too, and two layers of a matrix and a bias.
std::vector<BlockParams> model() {
  return {{"embed", {param("table", {50, 100}, true)}},
          {"h.0", {param("h.0.weight", {100, 100}), param("h.0.bias", {100})}},
          {"h.1", {param("h.1.weight", {100, 100}), param("h.1.bias", {100})}},
          {"head", {param("head.scale", {100}), param("table", {50, 100}, true)}}};
}

std::vector<std::string> names_of(const FlatPlan& plan) {
  std::vector<std::string> out;
  for (const FlatGroupPlan& group : plan.groups)
    out.push_back(group.name);
  return out;
}

TEST(FlatGroups, AreOnePerBlockAndOneForATiedParameter) {
  const FlatPlan plan = plan_flat_groups(model(), {});

  EXPECT_THAT(names_of(plan), ElementsAre("table", "h.0", "h.1", "head"));
  ASSERT_EQ(plan.groups[0].uses.size(), 2U);
  EXPECT_EQ(plan.groups[0].uses[1].block, 3);
  EXPECT_THAT(plan.groups[0].uses[1].params, ElementsAre(1));
  EXPECT_EQ(plan.groups[0].params.size(), 1U);
  EXPECT_THAT(plan.order,
              ElementsAre(Pair(0, 0), Pair(1, 0), Pair(1, 1), Pair(2, 0), Pair(2, 1), Pair(3, 0)));
}

TEST(FlatGroups, KeepSmallParametersWholeUpToTheLimit) {
  WeightOptions options;
  options.residency = Residency::Sharded;
  options.persistence_threshold = 200;
  options.persistent = 250;  // two of the three vectors

  const FlatPlan plan = plan_flat_groups(model(), options);

  EXPECT_THAT(names_of(plan),
              ElementsAre("table", "h.0", "h.0 (persistent)", "h.1", "h.1 (persistent)", "head"));
  EXPECT_EQ(plan.groups[1].residency, Residency::Sharded);
  EXPECT_EQ(plan.groups[2].residency, Residency::Whole);
  EXPECT_EQ(plan.groups[5].residency, Residency::Sharded);
}

TEST(FlatGroups, HoldFrozenParametersApart) {
  std::vector<BlockParams> blocks = model();
  ParamInfo frozen = *blocks[1].params[1];
  frozen.trainable = false;
  blocks[1].params[1] = std::make_shared<const ParamInfo>(frozen);

  const FlatPlan plan = plan_flat_groups(blocks, {});

  EXPECT_THAT(names_of(plan), ElementsAre("table", "h.0", "h.0 (frozen)", "h.1", "head"));
  EXPECT_FALSE(plan.groups[2].trainable);
}

TEST(FlatGroups, RefuseTiedParametersOfTwoShapes) {
  std::vector<BlockParams> blocks = model();
  blocks[3].params[1] = param("table", {51, 100}, true);
  EXPECT_THROW(plan_flat_groups(blocks, {}), Error);
}

TEST(FlatGroups, PadParametersToChunksAndBuffersToShards) {
  const FlatPlan plan = plan_flat_groups(model(), {});
  // 10,000 elements in ten chunks of 1024 and 100 in another one.
  EXPECT_EQ(plan.groups[1].layout(1).numel(), 11 * 1024);
  EXPECT_EQ(plan.groups[1].layout(4).numel(), 12 * 1024);
}

TEST(OwnedRanges, CoverABufferOnce) {
  const FlatLayout layout = plan_flat_groups(model(), {}).groups[1].layout(3);
  EXPECT_EQ(owned_range(layout, 0, 2).numel, layout.numel());
  std::int64_t at = 0;
  for (int index = 0; index < 3; ++index) {
    const OwnedRange range = owned_range(layout, 1, index);
    EXPECT_EQ(range.begin, at);
    at += range.numel;
  }
  EXPECT_EQ(at, layout.numel());
  // The bias is after ten chunks, in the last third.
  EXPECT_EQ(owned_range(layout, 2, 2).of(layout.segments()[1]).numel, 100);
  EXPECT_EQ(owned_range(layout, 2, 1).of(layout.segments()[1]).numel, 0);
}

TEST(SeparateMasters, AreThoseOfNarrowOrLocalWeights) {
  EXPECT_FALSE(has_separate_masters(DType::F32, DType::F32, false));
  EXPECT_TRUE(has_separate_masters(DType::F32, DType::F32, true));
  EXPECT_TRUE(has_separate_masters(DType::BF16, DType::F32, false));
  EXPECT_FALSE(has_separate_masters(DType::BF16, DType::BF16, false));
}

}  // namespace
}  // namespace tessera::parallel
