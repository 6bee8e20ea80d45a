// SPDX-License-Identifier: Apache-2.0
#include "tessera/comm/transports/shm.h"

#include <algorithm>

#include "tessera/comm/transports/pull.h"

namespace tessera::comm {
namespace {

/// Part of the 128 TiB that a process can address, for all arenas together.
constexpr std::size_t kAddressSpace = std::size_t{64} << 40;

}  // namespace

std::unique_ptr<Transport> make_shm_transport(int rank,
                                              const std::vector<int>& arenas,
                                              std::size_t arena_bytes,
                                              ControlPage* control) {
  const int ranks = static_cast<int>(arenas.size());
  const std::size_t bytes = std::min(arena_bytes, kAddressSpace / arenas.size());
  const auto open = [arenas, bytes](int peer) {
    return map_file(arenas[static_cast<std::size_t>(peer)], bytes);
  };
  return std::make_unique<PullTransport>("shm", rank, Arenas(ranks, open), *control);
}

}  // namespace tessera::comm
