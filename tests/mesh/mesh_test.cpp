// SPDX-License-Identifier: Apache-2.0
#include "tessera/mesh/mesh.h"

#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera::mesh {
namespace {

// pp 2, dp.rep 1, dp.shard 3, cp 1, tp.depth 1, tp.row 2, tp.col 2
const Mesh kMesh({.pp = 2, .dp_shard = 3, .tp_row = 2, .tp_col = 2});

TEST(MeshAxes, HaveTheLastOneFastest) {
  EXPECT_EQ(kMesh.size(), 24);
  EXPECT_EQ(kMesh.coordinate(1, Axis::TpCol), 1);
  EXPECT_EQ(kMesh.coordinate(2, Axis::TpRow), 1);
  EXPECT_EQ(kMesh.coordinate(4, Axis::DpShard), 1);
  EXPECT_EQ(kMesh.coordinate(12, Axis::Pp), 1);
  EXPECT_EQ(kMesh.coordinate(23, Axis::DpShard), 2);
}

TEST(MeshGroups, ContainTheirRanksInOrderOfIndex) {
  for (const AxisSet axes :
       {AxisSet{}, AxisSet::dp(), AxisSet::tp(), AxisSet::all(), AxisSet{Axis::Pp, Axis::TpCol}}) {
    for (int rank = 0; rank < kMesh.size(); ++rank) {
      const std::vector<int> group = kMesh.group(rank, axes);

      ASSERT_EQ(static_cast<int>(group.size()), kMesh.size(axes));
      EXPECT_EQ(group[kMesh.index(rank, axes)], rank);
      for (int i = 0; i < static_cast<int>(group.size()); ++i) {
        EXPECT_EQ(kMesh.index(group[i], axes), i);
        EXPECT_EQ(kMesh.group(group[i], axes), group) << "members see the same group";
      }
    }
  }
}

TEST(MeshGroups, DifferOnlyAlongTheirAxes) {
  EXPECT_EQ(kMesh.group(5, AxisSet::dp()), (std::vector<int>{1, 5, 9}));
  EXPECT_EQ(kMesh.group(5, AxisSet::tp()), (std::vector<int>{4, 5, 6, 7}));
  EXPECT_EQ(kMesh.group(5, {Axis::Pp}), (std::vector<int>{5, 17}));
}

// Experts are cut over the innermost part of data parallelism, so samples and all groups of whole
// axes stay where they are.
TEST(MeshGroups, StayTheSameIfDataParallelRanksHoldDifferentExperts) {
  const Mesh whole({.pp = 2, .dp_rep = 2, .dp_shard = 6, .cp = 2, .tp_col = 2});
  const Mesh cut({.pp = 2, .dp_rep = 2, .dp_shard = 3, .ep = 2, .cp = 2, .tp_col = 2});

  for (int rank = 0; rank < whole.size(); ++rank) {
    for (const AxisSet axes : {AxisSet::dp(), AxisSet::tokens(), AxisSet::tp(), AxisSet::all()}) {
      EXPECT_EQ(cut.group(rank, axes), whole.group(rank, axes));
      EXPECT_EQ(cut.index(rank, axes), whole.index(rank, axes));
    }
    EXPECT_EQ(cut.index(rank, AxisSet::dp()) % 2, cut.coordinate(rank, Axis::Ep));
  }
}

TEST(MeshGroups, HaveOneFirstRank) {
  for (const AxisSet axes : {AxisSet::dp(), AxisSet::tp(), AxisSet::all()}) {
    for (int rank = 0; rank < kMesh.size(); ++rank)
      EXPECT_EQ(kMesh.is_first(rank, axes), kMesh.group(rank, axes).front() == rank);
  }
}

TEST(MeshText, NamesTheProductsThatUsersName) {
  EXPECT_EQ(kMesh.text(), "pp 2 x dp 3 x cp 1 x tp 4");
  EXPECT_EQ(Mesh::data_parallel(8).text(), "pp 1 x dp 8 x cp 1 x tp 1");
}

TEST(MeshSizes, BelowOneAreRefusedWithTheWholeProduct) {
  try {
    Mesh({.dp_shard = 0, .tp_col = 2});
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::Config);
    EXPECT_NE(error.text().find("dp.shard 0 x ep 1 x cp 1"), std::string::npos) << error.text();
  }
}

TEST(MeshSizes, WhoseProductOverflowsAreRefused) {
  EXPECT_THROW(Mesh({.pp = 65536, .dp_shard = 65536}), Error);
}

TEST(MeshAxisSet, HasABitForEachAxis) {
  EXPECT_EQ((AxisSet{Axis::Pp}).bits(), 1);
  EXPECT_EQ(AxisSet::dp().bits(), 0b1110);
  EXPECT_EQ(AxisSet::all().bits(), 0b11111111);
}

TEST(MeshAxisSet, IsJoinedCutAndReduced) {
  constexpr AxisSet kDpCp = AxisSet::dp() | AxisSet{Axis::Cp};

  EXPECT_EQ(kDpCp, AxisSet::tokens());
  EXPECT_EQ(kDpCp - AxisSet::dp(), AxisSet{Axis::Cp});
  EXPECT_EQ(kDpCp & AxisSet({Axis::Ep, Axis::Pp}), AxisSet{Axis::Ep});
  EXPECT_EQ(AxisSet::all() - AxisSet::tokens() - AxisSet::tp(), AxisSet{Axis::Pp});
  EXPECT_TRUE((AxisSet::tp() - AxisSet::all()).empty());
}

}  // namespace
}  // namespace tessera::mesh
