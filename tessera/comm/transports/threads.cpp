// SPDX-License-Identifier: Apache-2.0
#include "tessera/comm/transports/threads.h"

#include "tessera/comm/transports/pull.h"

namespace tessera::comm {

std::vector<std::unique_ptr<Transport>> make_threads_transports(ControlPage* control,
                                                                std::size_t arena_bytes) {
  const int ranks = static_cast<int>(control->ranks);
  std::vector<std::shared_ptr<Mapping>> arenas;
  for (int rank = 0; rank < ranks; ++rank)
    arenas.push_back(map_anonymous(arena_bytes));
  const auto open = [arenas](int rank) { return arenas[static_cast<std::size_t>(rank)]; };
  std::vector<std::unique_ptr<Transport>> transports;
  for (int rank = 0; rank < ranks; ++rank)
    transports.push_back(
        std::make_unique<PullTransport>("threads", rank, Arenas(ranks, open), *control));
  return transports;
}

}  // namespace tessera::comm
