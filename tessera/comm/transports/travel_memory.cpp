// SPDX-License-Identifier: Apache-2.0
#include "tessera/comm/transports/travel_memory.h"

#include <algorithm>
#include <bit>

#include "tessera/comm/transports/host_column.h"
#include "tessera/comm/transports/ring.h"

namespace tessera::comm {
namespace {

constexpr std::size_t kSmallestStage = std::size_t{64} << 10;

/// Bytes for inputs of `bytes` that arrive from one rank of each other host.
std::size_t arriving(GroupPlace place, std::size_t bytes) {
  return bytes <= kMailboxBytes ? 0 : static_cast<std::size_t>(place.hosts - 1) * bytes;
}

HostColumn column_at(GroupPlace place) {
  HostColumn column;
  column.locals = place.locals;
  column.ranks.resize(static_cast<std::size_t>(place.hosts));
  return column;
}

}  // namespace

std::size_t staging_bytes(std::size_t least) {
  return std::bit_ceil(std::max(least, kSmallestStage));
}

// Bytes that ChainReduceScatter expects and keeps; a host in the middle has the sums of the hosts
// before and gets the total.
std::size_t memory_of_reduce_scatter(GroupPlace place,
                                     DType dtype,
                                     std::size_t bytes,
                                     Write write) {
  if (place.hosts < 2) return 0;
  const auto hosts = static_cast<std::size_t>(place.hosts);
  if (!chain_reduce_scatter(column_at(place), dtype, bytes, write))
    return arriving(place, bytes / hosts);
  const std::size_t of_column = bytes / static_cast<std::size_t>(place.locals);
  const std::size_t sums = staging_bytes(of_column), part = staging_bytes(of_column / hosts);
  const bool adds = write == Write::Accumulate;
  const std::size_t first = part + (adds ? (hosts - 1) * part : 0);
  const std::size_t later = sums + (hosts > 2 ? part : 0) + (adds ? part : 0);
  return sums + std::max(first, later);
}

std::size_t memory_of_all_to_all(GroupPlace place, std::size_t bytes) {
  return place.hosts < 2 ? 0 : arriving(place, bytes / static_cast<std::size_t>(place.hosts));
}

std::size_t memory_of_all_to_all_v(GroupPlace place, std::size_t bytes) {
  return place.hosts < 2 ? 0 : arriving(place, bytes);
}

std::size_t memory_of_all_gather(GroupPlace place, std::size_t bytes) {
  if (place.hosts < 2) return 0;
  return arriving(place, bytes / static_cast<std::size_t>(place.hosts * place.locals));
}

std::size_t memory_of_ring() {
  constexpr std::size_t kPage = 4096;  // of an arena
  return (sizeof(Ring) + kPage - 1) / kPage * kPage;
}

std::size_t memory_of_posts(GroupPlace place) {
  return static_cast<std::size_t>(place.hosts - 1) * sizeof(Ring);
}

}  // namespace tessera::comm
