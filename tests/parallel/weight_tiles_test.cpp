// SPDX-License-Identifier: Apache-2.0
// The division of parameters into tiles: they cover the parameter once, at multiples of a chunk.
#include "tessera/parallel/weight_tiles.h"

#include <cstdint>
#include <memory>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/parallel/flat_group_plan.h"
#include "tessera/tensor/flat_buffer.h"

namespace tessera::parallel {
namespace {

using testing::HasSubstr;

std::shared_ptr<const ParamInfo> parameter(const Shape& shape, bool tied = false) {
  auto out = std::make_shared<ParamInfo>();
  out->name = "layer.weight";
  out->shape = out->matrix_shape = shape;
  out->axes.assign(shape.size(), LogicalAxis::None);
  out->role = Role::TokenTable;
  out->tied = tied;
  return out;
}

TEST(WeightTiles, CoverTheParameterOnceAtMultiplesOfAChunk) {
  for (const Shape& shape : {Shape{50257, 768},
                             Shape{7, 1024},
                             Shape{100, 3},
                             Shape{3, 4, 64, 96},
                             Shape{1, 4096},
                             Shape{513, 1000}}) {
    for (const std::int64_t count : {1, 2, 3, 8, 1000}) {
      SCOPED_TRACE(testing::PrintToString(shape) + " in " + std::to_string(count));
      const auto info = parameter(shape);
      const nn::ParamInfos tiles = tiles_of(info, count);
      ASSERT_GE(tiles.size(), 1U);
      EXPECT_LE(static_cast<std::int64_t>(tiles.size()), count);
      if (tiles.size() == 1) {
        EXPECT_EQ(tiles.front(), info);
        EXPECT_FALSE(is_tile(*tiles.front()));
        continue;
      }
      std::int64_t at = 0, values = 0;
      for (const auto& tile : tiles) {
        EXPECT_TRUE(is_tile(*tile));
        EXPECT_EQ(tile->name, info->name);
        EXPECT_EQ(tile->shape, info->shape);
        EXPECT_EQ(tile->box.begin.front(), at);
        EXPECT_EQ(values % kChunk, 0);
        EXPECT_EQ(tile->room_numel(), tile->local_numel());
        at = tile->box.end.front();
        values += tile->local_numel();
      }
      EXPECT_EQ(at, shape.front());
      EXPECT_EQ(values, info->numel());
    }
  }
}

// A tied parameter is used by two blocks, which share the buffers of its tiles.
TEST(WeightTiles, HaveAFlatBufferEach) {
  const TileCount four = [](const ParamInfo&) { return std::int64_t{4}; };
  const nn::ParamInfos tiles = in_tiles({parameter({64, 128}, /*tied=*/true)}, four);
  ASSERT_EQ(tiles.size(), 4U);
  WeightOptions options;
  options.tables_apart = true;
  const FlatPlan plan = plan_flat_groups({{"embedding", tiles}, {"head", tiles}}, options);

  ASSERT_EQ(plan.groups.size(), 4U);
  EXPECT_EQ(plan.order.size(), 4U);
  for (const FlatGroupPlan& group : plan.groups) {
    EXPECT_TRUE(group.tile);
    EXPECT_EQ(group.uses.size(), 2U);
    EXPECT_EQ(group.layout(1).numel(), 64 * 128 / 4);
    EXPECT_NE(group.params.front()->role, Role::TokenTable);
  }
}

TEST(WeightTiles, AreNotMadeOfVectorsAndExperts) {
  EXPECT_EQ(tile_obstacle(*parameter({64, 128})), "");
  EXPECT_THAT(tile_obstacle(*parameter({4096})), HasSubstr("is a vector"));
  // The bias of a fused projection: queries, keys and values of heads.
  ParamInfo bias = *parameter({3, 16, 64});
  bias.matrix_shape = {3072};
  EXPECT_THAT(tile_obstacle(bias), HasSubstr("is a vector"));
  ParamInfo experts = *parameter({8, 64, 128});
  experts.axes.front() = LogicalAxis::Expert;
  EXPECT_THAT(tile_obstacle(experts), HasSubstr("experts"));
}

}  // namespace
}  // namespace tessera::parallel
