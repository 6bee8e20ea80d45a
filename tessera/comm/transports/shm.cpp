// SPDX-License-Identifier: Apache-2.0
#include "tessera/comm/transports/shm.h"

#include <algorithm>
#include <utility>

#include "tessera/comm/registry.h"
#include "tessera/comm/transports/hosts.h"
#include "tessera/comm/transports/pull.h"

namespace tessera::comm {
namespace {

/// Part of the 128 TiB that a process can address, for all arenas together.
constexpr std::size_t kAddressSpace = std::size_t{64} << 40;

Arenas open_arenas(const std::vector<int>& files, std::size_t arena_bytes) {
  const std::size_t bytes = std::min(arena_bytes, kAddressSpace / files.size());
  const auto open = [files, bytes](int peer) {
    return map_file(files[static_cast<std::size_t>(peer)], bytes);
  };
  return {static_cast<int>(files.size()), open};
}

}  // namespace

std::unique_ptr<Transport> make_shm_transport(int rank,
                                              const std::vector<int>& arenas,
                                              std::size_t arena_bytes,
                                              ControlPage* control) {
  return std::make_unique<PullTransport>("shm", rank, open_arenas(arenas, arena_bytes), *control);
}

std::unique_ptr<Transport> make_hosts_transport(int rank,
                                                const std::vector<int>& arenas,
                                                std::size_t arena_bytes,
                                                ControlPage* control,
                                                HostLayout layout,
                                                std::unique_ptr<HostLink> link) {
  return std::make_unique<PullTransport>(
      rank, open_arenas(arenas, arena_bytes), *control, std::move(layout), std::move(link));
}

namespace {

std::string why_not_shm(const WorldNeeds& needs) {
  if (needs.info.arenas.empty())
    return "the supervisor has made no shared memory for a single rank";
  return needs.part != nullptr ? "the ranks are on several hosts" : "";
}

MadeTransport make_shm(const WorldNeeds& needs,
                       ControlPage* control,
                       const std::shared_ptr<Transport>&) {
  const launch::RankInfo& info = needs.info;
  return {make_shm_transport(info.rank, info.arenas, info.arena_bytes, control),
          {0, 1, info.local_rank}};
}

TESSERA_TRANSPORT("shm", {.why_not = why_not_shm, .make = make_shm});

}  // namespace
}  // namespace tessera::comm
