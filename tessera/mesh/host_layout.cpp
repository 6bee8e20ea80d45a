// SPDX-License-Identifier: Apache-2.0
#include "tessera/mesh/host_layout.h"

#include <algorithm>
#include <string_view>

#include <fmt/format.h>

#include "tessera/base/text.h"

namespace tessera::mesh {
namespace {

struct NamedAxis {
  std::string_view name;
  AxisSet axes;
  std::string_view key;  // key of the axes that communicate in every layer
};

const std::vector<NamedAxis>& named_axes() {
  static const std::vector<NamedAxis> all = {
      {"pipeline parallelism", AxisSet{Axis::Pp}, ""},
      {"data parallelism", AxisSet::dp(), ""},
      {"expert parallelism", AxisSet{Axis::Ep}, "parallel.expert"},
      {"context parallelism", AxisSet{Axis::Cp}, "parallel.context.size"},
      {"tensor parallelism", AxisSet::tp(), "parallel.tensor.size"}};
  return all;
}

bool crosses_hosts(const Mesh& mesh, AxisSet axes, int ranks_per_host) {
  for (int rank = 0; rank < mesh.size(); ++rank) {
    const std::vector<int> group = mesh.group(rank, axes);
    const bool one_host = std::all_of(group.begin(), group.end(), [&](int other) {
      return other / ranks_per_host == rank / ranks_per_host;
    });
    if (!one_host) return true;
  }
  return false;
}

}  // namespace

HostLayoutNotes host_layout_notes(const Mesh& mesh, int ranks_per_host) {
  HostLayoutNotes notes;
  if (mesh.size() <= ranks_per_host) return notes;
  std::vector<std::string> across, inside;
  for (const NamedAxis& axis : named_axes()) {
    const int size = mesh.size(axis.axes);
    if (size < 2) continue;
    if (!crosses_hosts(mesh, axis.axes, ranks_per_host)) {
      inside.emplace_back(axis.name);
      continue;
    }
    across.emplace_back(axis.name);
    if (axis.key.empty()) continue;
    notes.warnings.push_back(fmt::format(
        "{} of {} ranks crosses between hosts of {} {}: every layer waits for the network; choose "
        "{} so that a host has a multiple of its ranks",
        axis.name,
        size,
        ranks_per_host,
        ranks_per_host == 1 ? "rank" : "ranks",
        axis.key));
  }
  const AxisSet shards = {Axis::DpShard, Axis::Ep};
  if (mesh.size(AxisSet{Axis::DpRep}) > 1 && crosses_hosts(mesh, shards, ranks_per_host)) {
    notes.warnings.push_back(fmt::format(
        "groups of {} ranks that hold the weights cross between hosts of {}: their gathers wait "
        "for "
        "the network; \"auto\" for zero_optimization.zero_hpz_partition_size or mics_shard_size "
        "makes them the ranks of a host",
        mesh.size(shards),
        ranks_per_host));
  }
  if (!across.empty()) notes.text = text::join(across, ", ") + " between hosts";
  if (!inside.empty())
    notes.text += (notes.text.empty() ? "" : "; ") + text::join(inside, ", ") + " inside";
  return notes;
}

int group_of_host(const Mesh& mesh, int ranks_per_host) {
  const int ranks = mesh.size(AxisSet::dp());
  for (int size = ranks; size > 1; --size) {
    if (ranks % size != 0) continue;
    const Mesh grouped({.pp = mesh.size(Axis::Pp),
                        .dp_rep = ranks / size,
                        .dp_shard = size,
                        .cp = mesh.size(Axis::Cp),
                        .tp_depth = mesh.size(Axis::TpDepth),
                        .tp_row = mesh.size(Axis::TpRow),
                        .tp_col = mesh.size(Axis::TpCol)});
    if (!crosses_hosts(grouped, AxisSet{Axis::DpShard}, ranks_per_host)) return size;
  }
  return 1;
}

}  // namespace tessera::mesh
