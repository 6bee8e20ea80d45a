// SPDX-License-Identifier: Apache-2.0
#include "tessera/planner/travel.h"

#include <algorithm>
#include <cstddef>
#include <map>

#include "tessera/comm/transports/host_column.h"
#include "tessera/comm/transports/travel_memory.h"
#include "tessera/mesh/host_layout.h"
#include "tessera/parallel/byte_codes.h"
#include "tessera/parallel/layout.h"

namespace tessera::planner {
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
std::size_t reduction(const Plan& plan, GroupPlace place, std::int64_t numel) {
  const parallel::ReductionOptions options = plan.layout().reduction_options();
  if (options.narrow())
    return comm::memory_of_all_to_all(place, bytes_of(options.sent(numel), options.comm_dtype));
  const std::size_t bytes = bytes_of(numel, options.accumulate);
  const auto of = [&](comm::Write write) {
    return comm::memory_of_reduce_scatter(place, options.accumulate, bytes, write);
  };
  const bool adds = options.mode == parallel::Reduction::Each && options.max_micros > 1;
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

}  // namespace

std::int64_t travel_bytes(const Plan& plan,
                          int host_ranks,
                          std::span<const TravelingBuffer> buffers,
                          std::int64_t gathered) {
  if (host_ranks >= plan.ranks()) return 0;
  const int locals = mesh::group_of_host(plan.mesh(), host_ranks);
  const GroupPlace all = place_of(plan.layout().data_ranks, locals);
  if (all.hosts == 1) return 0;
  std::size_t bytes = kGroups * comm::memory_of_posts(all) + kSmallInputs;
  std::map<std::int64_t, int> uses_of_size;
  // Stage 0 gathers the sums of gradients, the others the weights that an update has changed.
  const DType updated = plan.layout().zero_stage == 0 ? plan.layout().sums : plan.layout().working;
  const int groups = plan.layout().data_ranks / plan.layout().shard_ranks;
  const GroupPlace owners = place_of(groups, std::max(1, locals / plan.layout().shard_ranks));
  for (const TravelingBuffer& buffer : buffers) {
    if (!buffer.trained) continue;
    uses_of_size[buffer.numel] += static_cast<int>(buffer.uses);
    bytes +=
        buffer.sharded
            ? comm::memory_of_all_gather(
                  owners, bytes_of(buffer.numel / plan.layout().shard_ranks, plan.layout().working))
            : comm::memory_of_all_gather(all, bytes_of(buffer.numel, updated));
  }
  const parallel::ReductionOptions options = plan.layout().reduction_options();
  for (const auto& [numel, uses] : uses_of_size) {
    const int most =
        options.locally()
            ? uses
            : std::min(uses,
                       parallel::in_flight(options, plan.layout().data_ranks, numel, uses).buffers);
    bytes += static_cast<std::size_t>(most) * reduction(plan, all, numel);
  }
  // The memory of gathers of another size is kept for a while.
  const GroupPlace shards = place_of(plan.layout().shard_ranks, locals);
  bytes += comm::memory_of_all_gather(shards, bytes_of(gathered, plan.layout().working));
  for (const auto& [numel, uses] : uses_of_size) {
    if (plan.layout().zero_stage == 3)
      bytes += comm::memory_of_all_gather(shards, bytes_of(numel, plan.layout().working));
  }
  return static_cast<std::int64_t>(bytes);
}

}  // namespace tessera::planner
