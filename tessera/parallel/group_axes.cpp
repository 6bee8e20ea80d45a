// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/group_axes.h"

namespace tessera::parallel {
namespace {

using mesh::Axis;
using mesh::AxisSet;

bool first_of_copies(const mesh::Mesh& mesh, int rank, const GroupAxes& axes, AxisSet cut) {
  return mesh.is_first(rank, AxisSet::all() - AxisSet{Axis::Pp} - axes.fold - cut);
}

}  // namespace

GroupAxes dense_axes() {
  return {};
}

GroupAxes expert_axes(const mesh::ExpertFold& fold) {
  const GroupAxes dense;
  return {.fold = dense.fold - fold.ep,
          .inner = dense.inner - fold.ep,
          .copies = dense.copies - fold.ep,
          .partial = dense.partial - fold.ep,
          .sources = AxisSet::dp() & fold.ep};
}

bool writes(const mesh::Mesh& mesh, int rank, const GroupAxes& axes, const mesh::ShardSpec& spec) {
  return first_of_copies(mesh, rank, axes, spec.axes());
}

bool writes_of_matrix(const mesh::Mesh& mesh,
                      int rank,
                      const GroupAxes& axes,
                      const ParamInfo& info) {
  return first_of_copies(mesh, rank, axes, info.spec.axes() - info.axes_of_matrix());
}

GroupRanks ranks_of(comm::World& world, const GroupAxes& axes) {
  return {.fold = &world.group(axes.fold),
          .inner = &world.group(axes.inner),
          .copies = &world.group(axes.copies),
          .slices = world.mesh().size(axes.sources)};
}

}  // namespace tessera::parallel
