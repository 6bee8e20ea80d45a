// SPDX-License-Identifier: Apache-2.0
#include "tessera/mesh/shard_spec.h"

#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera::mesh {
namespace {

using Bounds = std::pair<std::int64_t, std::int64_t>;

TEST(EvenCut, GivesTheFirstPartsOneUnitMore) {
  EXPECT_EQ(even_cut(10, 1, 4, 0), (Bounds{0, 3}));
  EXPECT_EQ(even_cut(10, 1, 4, 1), (Bounds{3, 6}));
  EXPECT_EQ(even_cut(10, 1, 4, 2), (Bounds{6, 8}));
  EXPECT_EQ(even_cut(10, 1, 4, 3), (Bounds{8, 10}));
}

TEST(EvenCut, NeverCutsAUnit) {
  EXPECT_EQ(even_cut(24, 8, 2, 0), (Bounds{0, 16}));
  EXPECT_EQ(even_cut(24, 8, 2, 1), (Bounds{16, 24}));
  EXPECT_THROW(even_cut(20, 8, 2, 0), Error);
}

TEST(EvenCut, LeavesLastPartsEmptyWhenUnitsRunOut) {
  EXPECT_EQ(even_cut(2, 1, 4, 1), (Bounds{1, 2}));
  EXPECT_EQ(even_cut(2, 1, 4, 3), (Bounds{2, 2}));
}

TEST(LocalBox, IsTheWholeTensorWhenNothingIsNamed) {
  const Box box = local_box({4, 6}, {}, Mesh::data_parallel(3), 1);

  EXPECT_EQ(box, whole({4, 6}));
  EXPECT_EQ(box.numel(), 24);
}

TEST(LocalBox, TilesTheTensorOverTheAxes) {
  const Mesh mesh({.dp_shard = 2, .tp_col = 3});
  const ShardSpec spec{{{1, AxisSet::tp(), 2}, {0, AxisSet::dp()}}, {}};
  std::vector<int> covered(5 * 8, 0);

  for (int rank = 0; rank < mesh.size(); ++rank) {
    const Box box = local_box({5, 8}, spec, mesh, rank);
    for (auto i = box.begin[0]; i < box.end[0]; ++i) {
      for (auto j = box.begin[1]; j < box.end[1]; ++j)
        ++covered[i * 8 + j];
    }
  }

  EXPECT_EQ(covered, std::vector<int>(5 * 8, 1));
}

TEST(LocalBox, CutsADimTwiceOverOtherAxes) {
  const Mesh mesh({.dp_shard = 2, .tp_col = 2});
  const ShardSpec spec{{{0, AxisSet::tp()}, {0, AxisSet::dp()}}, {}};

  EXPECT_EQ(local_box({8}, spec, mesh, 0), (Box{{0}, {2}}));
  EXPECT_EQ(local_box({8}, spec, mesh, 1), (Box{{4}, {6}}));
  EXPECT_EQ(local_box({8}, spec, mesh, 3), (Box{{6}, {8}}));
}

TEST(LocalBox, ObeysGivenCuts) {
  const ShardSpec spec{{{0, AxisSet::dp(), 1, {0, 1, 8}}}, {}};

  EXPECT_EQ(local_box({8}, spec, Mesh::data_parallel(2), 1), (Box{{1}, {8}}));
  EXPECT_THROW(local_box({9}, spec, Mesh::data_parallel(2), 1), Error);
  EXPECT_THROW(local_box({8}, spec, Mesh::data_parallel(3), 1), Error);
}

TEST(LocalBox, RefusesWhatIsNotABox) {
  const ShardSpec zigzag{{{0, AxisSet::dp(), 1, {}, Order::Zigzag}}, {}};

  EXPECT_THROW(local_box({8}, zigzag, Mesh::data_parallel(2), 0), Error);
  EXPECT_EQ(local_box({8}, zigzag, Mesh::data_parallel(1), 0), whole({8}));
  EXPECT_THROW(local_box({8}, {{{1, AxisSet::dp()}}, {}}, Mesh::data_parallel(2), 0), Error);
}

}  // namespace
}  // namespace tessera::mesh
