// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/travel_bytes.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <set>
#include <utility>

#include "tessera/comm/transports/host_column.h"
#include "tessera/comm/transports/travel_memory.h"
#include "tessera/mesh/host_layout.h"
#include "tessera/parallel/byte_codes.h"
#include "tessera/parallel/layout.h"

namespace tessera::parallel {
namespace {

using comm::GroupPlace;

/// The number of groups with members on several hosts, an estimate: all ranks, and those of data
/// parallelism.
constexpr int kGroups = 4;
/// Bytes of norms, counts of labels, and rows of tables, an estimate that fits small models.
constexpr std::size_t kSmallInputs = std::size_t{256} << 10;

/// The place of `size` neighbouring members of a group with `locals` members on each host.
GroupPlace place_of(int size, int locals) {
  const int inside = std::min(size, locals);
  return {size / inside, inside};
}

std::size_t bytes_of(std::int64_t numel, DType dtype) {
  return static_cast<std::size_t>(numel) * size_of(dtype);
}

/// Bytes for one reduction of `numel` gradients.
std::size_t reduction(const ReductionOptions& options, GroupPlace place, std::int64_t numel) {
  if (options.narrow())
    return comm::memory_of_all_to_all(place, bytes_of(options.sent(numel), options.comm_dtype));
  const std::size_t bytes = bytes_of(numel, options.accumulate);
  const auto of = [&](comm::Write write) {
    return comm::memory_of_reduce_scatter(place, options.accumulate, bytes, write);
  };
  const bool adds = options.mode == Reduction::Each && options.max_micros > 1;
  if (!adds) return of(comm::Write::Store);
  // The first gradient of a step is stored, and the others are added. If only one of the two is a
  // sum that goes from host to host, they use different memory.
  comm::HostColumn column;
  column.locals = place.locals;
  column.ranks.resize(static_cast<std::size_t>(place.hosts));
  const auto chained = [&](comm::Write write) {
    return comm::chain_reduce_scatter(column, options.accumulate, bytes, write);
  };
  const std::size_t stored = of(comm::Write::Store), added = of(comm::Write::Accumulate);
  return chained(comm::Write::Store) == chained(comm::Write::Accumulate) ? std::max(stored, added)
                                                                         : stored + added;
}

/// The ranks of a buffer's groups on the hosts.
struct Places {
  GroupPlace fold, inner, copies;
};

/// Neighbours of a group of `group` ranks on a host with `locals` neighbours of data parallelism:
/// the ranks of an expert's group have other ranks of data parallelism between them.
Places places_of(const GroupSizes& ranks, const Layout& layout, int locals) {
  const int apart = layout.data_ranks / ranks.fold;
  const int here = std::max(1, locals / apart), inner = std::min(ranks.inner, layout.shard_ranks);
  return {.fold = place_of(ranks.fold, here),
          .inner = place_of(inner, here),
          .copies = place_of(ranks.copies, std::max(1, here / inner))};
}

/// Gradients of one size that are summed over the same ranks.
struct Pool {
  Places places;
  GroupSizes ranks;
  int uses = 0;
};

/// The groups of several ranks in which a rank of the stage takes part.
int num_groups(const PlannedStage& stage, const Layout& layout) {
  const mesh::Mesh mesh = layout.mesh();
  std::set<std::uint16_t> groups;
  const auto add = [&](mesh::AxisSet axes) {
    if (mesh.size(axes) > 1) groups.insert(axes.bits());
  };
  add(mesh::AxisSet::all());
  add({mesh::Axis::Pp});
  add({mesh::Axis::Cp});
  add(mesh::AxisSet::tp());
  if (layout.tensor != TensorLayout::OneD) {
    for (const mesh::Axis axis : {mesh::Axis::TpDepth, mesh::Axis::TpRow, mesh::Axis::TpCol})
      add({axis});
  }
  for (const PlannedBuffer& buffer : stage.buffers) {
    const GroupAxes& axes = buffer.group.axes;
    if (buffer.group.trainable) add(axes.fold);
    add(axes.sources);
    if (!gathers(buffer.group.residency)) continue;
    add(axes.inner);
    add(axes.copies);
  }
  return static_cast<int>(groups.size());
}

/// The channels on which a rank of the stage sends flows and gradients of flows.
int num_channels(const StageLayout& stages, int index) {
  int out = 0;
  for (int chunk = 0; chunk < stages.chunks; ++chunk) {
    const int part = stages.part(index, chunk);
    out += (part > 0 ? 1 : 0) + (part + 1 < stages.parts() ? 1 : 0);
  }
  return out;
}

/// Bytes of the copies of what layers exchange, of a flow of `flow` bytes between two blocks: some
/// are read while others are written. The numbers are the most that were seen in trainings.
std::size_t copies_of_layers(const Layout& layout, std::size_t flow) {
  const std::size_t small = comm::staging_bytes(1);  // sums of losses and of norms
  std::size_t out = 0;
  if (layout.grid.size() > 1 && layout.tensor == TensorLayout::OneD) {
    out += (layout.sequence ? 3 : 2) * comm::staging_bytes(flow) + 2 * small;
  } else if (layout.grid.size() > 1) {
    out += 7 * comm::staging_bytes(4 * flow) + 4 * small;  // as wide as a feed-forward layer
  }
  if (layout.context > 1) {
    // Keys and values of a ring travel with their gradients; ulysses exchanges queries too.
    out += layout.context_mode == nn::ContextMode::Ring ? 14 * comm::staging_bytes(2 * flow)
                                                        : 6 * comm::staging_bytes(3 * flow);
  }
  return out;
}

/// A parameter whose uses are on several stages, which exchange its gradients.
bool across_stages(const PlannedBuffer& buffer) {
  return buffer.group.trainable && buffer.blocks.size() < buffer.group.uses.size();
}

}  // namespace

std::int64_t travel_bytes(const PlannedStage& stage,
                          const Layout& layout,
                          int host_ranks,
                          std::int64_t gathered) {
  if (host_ranks >= layout.ranks()) return 0;
  const int locals = mesh::group_of_host(layout.mesh(), host_ranks);
  const GroupPlace all = place_of(layout.data_ranks, locals);
  if (all.hosts == 1) return 0;
  std::size_t bytes = kGroups * comm::memory_of_posts(all) + kSmallInputs;
  // Stage 0 gathers the sums of gradients, the others the weights that an update has changed.
  const DType updated = layout.zero_stage == 0 ? layout.sums : layout.working;
  std::map<std::pair<std::uint16_t, std::int64_t>, Pool> pools;
  for (const PlannedBuffer& buffer : stage.buffers) {
    if (!buffer.group.trainable) continue;
    const std::int64_t numel = buffer.layout.numel();
    const Places places = places_of(buffer.ranks, layout, locals);
    Pool& pool = pools[{buffer.group.axes.fold.bits(), numel}];
    pool.places = places;
    pool.ranks = buffer.ranks;
    pool.uses += buffer.uses();
    bytes += gathers(buffer.group.residency)
                 ? comm::memory_of_all_gather(places.copies,
                                              bytes_of(numel / buffer.ranks.inner, layout.working))
                 : comm::memory_of_all_gather(places.fold, bytes_of(numel, updated));
  }
  const ReductionOptions options = layout.reduction_options();
  for (const auto& [key, pool] : pools) {
    const std::int64_t numel = key.second;
    const int slices = pool.ranks.slices;
    const int most =
        options.locally()
            ? pool.uses
            : std::min(pool.uses,
                       in_flight(options, pool.ranks.fold, numel, pool.uses, slices).buffers);
    bytes += static_cast<std::size_t>(most * slices) * reduction(options, pool.places.fold, numel);
  }
  // The memory of gathers of another size is kept for a while.
  const GroupPlace shards = place_of(layout.shard_ranks, locals);
  bytes += comm::memory_of_all_gather(shards, bytes_of(gathered, layout.working));
  for (const auto& [key, pool] : pools) {
    if (layout.zero_stage == 3)
      bytes += comm::memory_of_all_gather(pool.places.inner, bytes_of(key.second, layout.working));
  }
  return static_cast<std::int64_t>(bytes);
}

std::int64_t message_bytes(const PlannedStage& stage,
                           const Layout& layout,
                           int index,
                           std::int64_t flow) {
  if (layout.ranks() == 1) return 0;
  const bool pipeline = layout.stages.stages > 1;
  int rings = num_groups(stage, layout);
  std::size_t staged = copies_of_layers(layout, static_cast<std::size_t>(flow));
  if (layout.grid.size() > 1 && layout.tensor != TensorLayout::OneD)
    rings += 2;                     // parts of its axes
  if (layout.context > 1) ++rings;  // the channel to the neighbour
  if (pipeline) {
    rings += num_channels(layout.stages, index);
    staged += 2 * comm::staging_bytes(static_cast<std::size_t>(flow));
  }
  bool tied = false;
  for (const PlannedBuffer& buffer : stage.buffers) {
    if (!across_stages(buffer)) continue;
    tied = true;
    staged += comm::staging_bytes(static_cast<std::size_t>(
        buffer.layout.shard_numel() * static_cast<std::int64_t>(size_of(layout.sums))));
  }
  if (tied) ++rings;
  return static_cast<std::int64_t>(staged) +
         rings * static_cast<std::int64_t>(comm::memory_of_ring());
}

}  // namespace tessera::parallel
