// SPDX-License-Identifier: Apache-2.0
#include "tessera/mesh/host_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera::mesh {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// pp, dp.rep, dp.shard, cp, tp.depth, tp.row, tp.col
TEST(HostLayoutNotes, SayWhatCrossesAndWhatStaysInside) {
  const auto notes = host_layout_notes(Mesh({.pp = 2, .tp_col = 2}), 2);

  EXPECT_EQ(notes.text, "pipeline parallelism between hosts; tensor parallelism inside");
  EXPECT_TRUE(notes.warnings.empty());
}

TEST(HostLayoutNotes, WarnOfAxesThatWaitInEveryLayer) {
  const auto notes = host_layout_notes(Mesh({.tp_col = 4}), 2);

  EXPECT_EQ(notes.text, "tensor parallelism between hosts");
  EXPECT_THAT(
      notes.warnings,
      ElementsAre(HasSubstr("tensor parallelism of 4 ranks crosses between hosts of 2 ranks")));
  EXPECT_THAT(host_layout_notes(Mesh({.cp = 2}), 1).warnings,
              ElementsAre(HasSubstr("parallel.context.size")));
}

TEST(HostLayoutNotes, WarnOfGroupsOfWeightsThatCross) {
  EXPECT_TRUE(host_layout_notes(Mesh({.dp_rep = 2, .dp_shard = 2}), 2).warnings.empty());
  EXPECT_THAT(
      host_layout_notes(Mesh({.dp_rep = 2, .dp_shard = 4}), 2).warnings,
      ElementsAre(HasSubstr("groups of 4 ranks that hold the weights cross between hosts")));
  EXPECT_THAT(host_layout_notes(Mesh({.dp_rep = 2, .dp_shard = 2}), 3).warnings,
              ElementsAre(HasSubstr("zero_hpz_partition_size")));
  // Without groups the weights are sharded over all ranks, and there is no group size to choose.
  EXPECT_TRUE(host_layout_notes(Mesh({.dp_shard = 4}), 2).warnings.empty());
}

TEST(GroupOfHost, IsTheRanksOfAHostThatShareNoModel) {
  EXPECT_EQ(group_of_host(Mesh::data_parallel(8), 4), 4);
  EXPECT_EQ(group_of_host(Mesh::data_parallel(4), 1), 1);
  EXPECT_EQ(group_of_host(Mesh::data_parallel(4), 4), 4);
  // Groups that exist already change nothing.
  EXPECT_EQ(group_of_host(Mesh({.dp_rep = 4, .dp_shard = 2}), 4), 4);
  // Two ranks of a host share a layer; a stage of the pipeline has two hosts, or half of one.
  EXPECT_EQ(group_of_host(Mesh({.dp_shard = 4, .tp_col = 2}), 4), 2);
  EXPECT_EQ(group_of_host(Mesh({.pp = 2, .dp_shard = 4}), 2), 2);
  EXPECT_EQ(group_of_host(Mesh({.pp = 2, .dp_shard = 2}), 4), 2);
  // Groups of three ranks would not divide four.
  EXPECT_EQ(group_of_host(Mesh::data_parallel(4), 3), 1);
}

TEST(HostLayoutNotes, AreEmptyOnOneHost) {
  EXPECT_EQ(host_layout_notes(Mesh::data_parallel(4), 4).text, "");
  EXPECT_EQ(host_layout_notes(Mesh::data_parallel(4), 2).text, "data parallelism between hosts");
}

}  // namespace
}  // namespace tessera::mesh
