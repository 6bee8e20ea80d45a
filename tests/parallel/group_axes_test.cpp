// SPDX-License-Identifier: Apache-2.0
// labels: fast
// The groups of ranks of a flat buffer, and which rank writes which part of it.
#include "tessera/parallel/group_axes.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/comm/transports/shapes.h"
#include "tessera/nn/tensor_parallel/tensor_parallel.h"
#include "tessera/parallel/flat_group_plan.h"

namespace tessera::parallel {
namespace {

using mesh::Axis;
using mesh::AxisSet;

TEST(GroupAxes, OfExpertsLeaveOutTheRanksThatHoldOtherExperts) {
  const AxisSet copies_and_shards = {Axis::DpRep, Axis::DpShard};

  const GroupAxes own = expert_axes({.ep = {Axis::Ep}});
  EXPECT_EQ(own.fold, copies_and_shards);
  EXPECT_EQ(own.inner, AxisSet{Axis::DpShard});
  EXPECT_EQ(own.copies, AxisSet{Axis::DpRep});
  EXPECT_EQ(own.partial, AxisSet{Axis::Cp}) << "ranks with other tokens of the same samples";
  EXPECT_EQ(own.sources, AxisSet{Axis::Ep});

  const GroupAxes folded = expert_axes({.ep = {Axis::Ep, Axis::Cp}});
  EXPECT_EQ(folded.fold, copies_and_shards);
  EXPECT_TRUE(folded.partial.empty()) << "their tokens are sent to the owner of the expert";
  EXPECT_EQ(folded.sources, AxisSet{Axis::Ep}) << "the ranks of a context share their samples";

  const GroupAxes over_layers = expert_axes({.ep = AxisSet{Axis::Ep} | AxisSet::tp()});
  EXPECT_EQ(over_layers.fold, copies_and_shards);
  EXPECT_EQ(over_layers.sources, AxisSet{Axis::Ep});
}

TEST(GroupAxes, OfExpertsThatEveryRankHoldsAreThoseOfAllParameters) {
  EXPECT_EQ(expert_axes({}), dense_axes());
  EXPECT_EQ(dense_axes().fold, AxisSet::dp());
}

TEST(GroupAxes, DivideTheFoldIntoNeighboursAndCopies) {
  for (const AxisSet ep : {AxisSet(), AxisSet{Axis::Ep}, AxisSet{Axis::Ep, Axis::Cp}}) {
    const GroupAxes axes = expert_axes({.ep = ep});
    EXPECT_EQ(axes.inner | axes.copies, axes.fold);
    EXPECT_TRUE((axes.inner & axes.copies).empty());
    EXPECT_TRUE((axes.fold & axes.sources).empty());
  }
}

/// Every mesh of up to `most` ranks.
std::vector<mesh::Mesh> meshes(int most) {
  std::vector<mesh::Mesh> out;
  std::vector<int> sizes(8, 1);
  const auto extend = [&](const auto& self, std::size_t axis, int left) -> void {
    if (axis == sizes.size()) {
      out.push_back(mesh::Mesh({.pp = sizes[0],
                                .dp_rep = sizes[1],
                                .dp_shard = sizes[2],
                                .ep = sizes[3],
                                .cp = sizes[4],
                                .tp_depth = sizes[5],
                                .tp_row = sizes[6],
                                .tp_col = sizes[7]}));
      return;
    }
    for (sizes[axis] = 1; sizes[axis] <= left; ++sizes[axis])
      self(self, axis + 1, left / sizes[axis]);
    sizes[axis] = 1;
  };
  extend(extend, 0, most);
  return out;
}

/// A parameter, and how it is placed.
struct Case {
  std::string name;
  Shape shape;
  std::vector<LogicalAxis> axes;
  nn::TensorMode mode = nn::TensorMode::OneD;
  mesh::ExpertFold experts = {};
  std::int64_t unit = 1;
};

std::vector<Case> cases() {
  using enum LogicalAxis;
  const AxisSet ep = {Axis::Ep}, both = {Axis::Ep, Axis::Cp}, tp = AxisSet::tp();
  std::vector<Case> out = {
      {"a norm", {7}, {None}},
      {"features", {17, 3}, {Ffn, Embed}},
      {"heads of keys and values", {32, 2}, {KvHeads, Embed}, nn::TensorMode::OneD, {}, 2},
      {"on a grid", {16, 17}, {Ffn, Embed}, nn::TensorMode::TwoD},
      {"on a cube", {16, 17}, {Ffn, Embed}, nn::TensorMode::ThreeD}};
  for (const AxisSet over : {AxisSet(), ep, both, ep | tp, both | tp}) {
    for (const AxisSet etp : {AxisSet(), tp}) {
      if ((over & etp).empty())
        out.push_back(
            {"experts", {17, 16, 2}, {Expert, Ffn, Embed}, nn::TensorMode::OneD, {over, etp}});
    }
  }
  return out;
}

std::shared_ptr<const ParamInfo> placed(const Case& one, const mesh::Mesh& mesh, int rank) {
  const auto world = comm::shape_world(mesh, rank);
  const nn::TensorParallel tensor{world.get(), &world->group(AxisSet::tp()), one.mode};
  const nn::ExpertParallel experts{world.get(), &world->group(one.experts.ep), one.experts};
  ParamInfo info;
  info.name = one.name;
  info.shape = one.shape;
  info.axes = one.axes;
  info.unit = one.unit;
  info.matrix_shape = one.shape;
  Param param(std::make_shared<const ParamInfo>(std::move(info)));
  nn::place(param, &tensor, &experts);
  return param.shared_info();
}

/// Calls fn(index in the whole parameter) for elements [first, last) of a box.
template <class Fn>
void for_each_element(
    const Shape& shape, const mesh::Box& box, std::int64_t first, std::int64_t last, Fn fn) {
  for (std::int64_t i = first; i < last; ++i) {
    std::int64_t rest = i, index = 0, stride = 1;
    for (std::size_t d = shape.size(); d-- > 0;) {
      const std::int64_t size = box.end[d] - box.begin[d];
      index += (box.begin[d] + rest % size) * stride;
      rest /= size;
      stride *= shape[d];
    }
    fn(static_cast<std::size_t>(index));
  }
}

// Each stage of a pipeline saves its own buffers, so the ranks of each one cover all elements.
TEST(Pieces, OfASaveCoverEveryElementOnceOnEveryMesh) {
  const std::vector<Case> all = cases();
  for (const mesh::Mesh& mesh : meshes(16)) {
    for (const Case& one : all) {
      const GroupAxes axes =
          one.axes.front() == LogicalAxis::Expert ? expert_axes(one.experts) : dense_axes();
      const int stages = mesh.size(Axis::Pp);
      const auto numel = placed(one, mesh, 0)->numel();
      std::vector<std::vector<int>> elements(static_cast<std::size_t>(stages),
                                             std::vector<int>(static_cast<std::size_t>(numel)));
      std::vector<std::vector<int>> matrices(static_cast<std::size_t>(stages),
                                             std::vector<int>(17));
      for (int rank = 0; rank < mesh.size(); ++rank) {
        const auto stage = static_cast<std::size_t>(mesh.coordinate(rank, Axis::Pp));
        const auto info = placed(one, mesh, rank);
        const FlatLayout layout("block", {info}, mesh.size(axes.fold));
        const int index = mesh.index(rank, axes.fold);
        for (const Segment& segment : layout.segments()) {
          if (index == 0 && writes_of_matrix(mesh, rank, axes, *info))
            ++matrices[stage][static_cast<std::size_t>(std::max<std::int64_t>(0, segment.matrix))];
          const Segment range = owned_range(layout, /*stage=*/1, index).of(segment);
          if (!writes(mesh, rank, axes, info->spec)) continue;
          const std::int64_t first = range.begin - segment.begin;
          for_each_element(
              info->shape, segment.box(), first, first + range.numel, [&](std::size_t i) {
                ++elements[stage][i];
              });
        }
      }
      const auto count = placed(one, mesh, 0)->num_matrices();
      for (int stage = 0; stage < stages; ++stage) {
        const auto s = static_cast<std::size_t>(stage);
        ASSERT_EQ(std::count(elements[s].begin(), elements[s].end(), 1), numel)
            << one.name << " on " << mesh.text() << ", ep " << mesh.size(Axis::Ep);
        ASSERT_EQ(std::count(matrices[s].begin(), matrices[s].end(), 1), count)
            << "state of matrices of " << one.name << " on " << mesh.text();
      }
    }
  }
}

}  // namespace
}  // namespace tessera::parallel
