// SPDX-License-Identifier: Apache-2.0
// Messages between ranks of different hosts over gloo, as libtorch contains it
// (c10d::ProcessGroupGloo).
#pragma once

#include <memory>

#include "tessera/comm/transports/host_link.h"
#include "tessera/hosts/store_client.h"

namespace tessera::engine {

/// Connects this rank with all others over TCP. The ranks exchange their addresses through the
/// coordinator of the job; gloo itself neither authenticates nor encrypts its connections, and
/// listens on one address of this host: that of the interface GLOO_SOCKET_IFNAME, or the one on the
/// way to the coordinator. Collective: returns when all ranks of the job have called it. Throws
/// Error{Comm} if that takes longer than `timeout_s`.
std::unique_ptr<comm::HostLink> connect_gloo(int rank,
                                             int world_size,
                                             hosts::StoreClient& values,
                                             double timeout_s);

}  // namespace tessera::engine
