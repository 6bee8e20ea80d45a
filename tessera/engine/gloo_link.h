// SPDX-License-Identifier: Apache-2.0
// Messages between ranks of different hosts over gloo, as libtorch contains it
// (c10d::ProcessGroupGloo).
#pragma once

#include <memory>

#include "tessera/comm/transports/host_link.h"
#include "tessera/launch/host_part.h"

namespace tessera::engine {

/// The connections of a rank, and what the ranks have exchanged about their hosts.
struct GlooConnection {
  std::unique_ptr<comm::HostLink> link;
  comm::HostLayout layout;
};

/// Connects this rank with all others over TCP. The ranks exchange their addresses through the head
/// of the job, over authenticated connections; gloo's own connections are neither authenticated nor
/// encrypted, and it listens on one address of this host: that of the interface GLOO_SOCKET_IFNAME,
/// or the one on the way to the head. Collective: returns when all ranks of the job have called it.
/// Throws Error{Comm} if that takes longer than `timeout_s`.
GlooConnection connect_gloo(int rank, const launch::HostPart& part, double timeout_s);

}  // namespace tessera::engine
