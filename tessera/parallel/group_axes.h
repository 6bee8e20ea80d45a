// SPDX-License-Identifier: Apache-2.0
// The groups of ranks of a flat buffer: who sums its gradients and holds its shards, and which rank
// writes which part of it into a checkpoint.
#pragma once

#include "tessera/comm/world.h"
#include "tessera/mesh/expert_fold.h"
#include "tessera/mesh/mesh.h"
#include "tessera/mesh/shard_spec.h"
#include "tessera/tensor/param.h"

namespace tessera::parallel {

/// The axes of a flat buffer. `fold` is `copies` and `inner` together.
struct GroupAxes {
  /// Gradients are summed over these ranks in the order of Mesh::index(), and shards are spread
  /// over them.
  mesh::AxisSet fold = mesh::AxisSet::dp();
  /// ZeRO stage 3 gathers weights over these; they are neighbours.
  mesh::AxisSet inner = {mesh::Axis::DpShard, mesh::Axis::Ep};
  /// Ranks along these keep the same parts of sharded weights.
  mesh::AxisSet copies = {mesh::Axis::DpRep};
  /// The sum over `fold` is still a partial sum over these, whose ranks have other tokens of the
  /// same samples.
  mesh::AxisSet partial = {mesh::Axis::Cp};
  /// The ranks from whose micro-batches a rank computes gradients of its parameters; a gradient
  /// has one slice for each of them. Empty: only from its own.
  mesh::AxisSet sources = {};
  bool operator==(const GroupAxes&) const = default;
};

/// The axes of parameters that all ranks use with their own samples.
GroupAxes dense_axes();
/// The axes of parameters of experts. A rank computes their gradients from the samples of all ranks
/// along `fold.ep`, so these do not take part in the sum. Without axes: dense_axes().
GroupAxes expert_axes(const mesh::ExpertFold& fold);

/// Returns whether `rank` writes what it holds of a parameter, when every rank along `axes.fold`
/// writes its own range of it: of the ranks that hold the same range, the first one writes. Stages
/// of a pipeline hold different buffers, so each has such a rank. Pure.
bool writes(const mesh::Mesh& mesh, int rank, const GroupAxes& axes, const mesh::ShardSpec& spec);
/// The same for a value of each whole matrix of a parameter (its name, or a state of the optimizer
/// for its rows), which all ranks that hold a box of that matrix have in common.
bool writes_of_matrix(const mesh::Mesh& mesh,
                      int rank,
                      const GroupAxes& axes,
                      const ParamInfo& info);

/// The groups of this rank over the axes of a buffer. They are the world's and live as long.
struct GroupRanks {
  const comm::Group* fold = nullptr;
  const comm::Group* inner = nullptr;
  const comm::Group* copies = nullptr;
  int slices = 1;  ///< of a gradient: ranks along GroupAxes::sources
  /// The number of gradients that are summed for each micro-batch of a rank.
  [[nodiscard]] int inputs() const { return fold->size() * slices; }
};
GroupRanks ranks_of(comm::World& world, const GroupAxes& axes);

}  // namespace tessera::parallel
