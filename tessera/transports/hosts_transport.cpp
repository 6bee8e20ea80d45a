// SPDX-License-Identifier: Apache-2.0
// The transport "hosts": shared memory within a host, and the registered link that run.transport
// names between hosts.
#include <utility>

#include "tessera/comm/registry.h"
#include "tessera/comm/transports/hosts.h"
#include "tessera/transports/connect_hosts.h"

namespace tessera::transports {
namespace {

std::string why_not(const comm::WorldNeeds& needs) {
  // The last host of a job may run a single rank, which has no peers to share memory with.
  return needs.part != nullptr && !needs.info.arenas.empty() ? "" : "all ranks are on one host";
}

comm::MadeTransport make(const comm::WorldNeeds& needs,
                         ControlPage* control,
                         const std::shared_ptr<comm::Transport>&) {
  const launch::RankInfo& info = needs.info;
  HostConnection others = connect_hosts(info.rank, *needs.part, needs.link, needs.connect_s);
  const comm::World::Host host{
      others.layout.host_of(info.rank), others.layout.hosts(), info.local_rank};
  return {comm::make_hosts_transport(info.rank,
                                     info.arenas,
                                     info.arena_bytes,
                                     control,
                                     std::move(others.layout),
                                     std::move(others.link)),
          host};
}

TESSERA_TRANSPORT("hosts", {.why_not = why_not, .make = make});

}  // namespace
}  // namespace tessera::transports
