// SPDX-License-Identifier: Apache-2.0
// Transport between ranks of several hosts: shared memory within a host, a link between hosts.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "tessera/base/control_page.h"
#include "tessera/comm/transport.h"
#include "tessera/comm/transports/host_link.h"

namespace tessera::comm {

/// `arenas[i]`: a memory file of this host for rank i of the world, whether it runs on this host or
/// not, `arena_bytes` long (sparse); shared by the ranks of this host. `control` has a line for
/// every rank of the world. Takes no ownership of the descriptors.
std::unique_ptr<Transport> make_hosts_transport(int rank,
                                                const std::vector<int>& arenas,
                                                std::size_t arena_bytes,
                                                ControlPage* control,
                                                HostLayout layout,
                                                std::unique_ptr<HostLink> link);

}  // namespace tessera::comm
