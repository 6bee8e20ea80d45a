// SPDX-License-Identifier: Apache-2.0
// Collectives between GPUs by NCCL.
#pragma once

#include <memory>

#include "tessera/comm/transport.h"
#include "tessera/transports/nccl_api.h"

namespace tessera::transports {

/// A transport for the memory of `device`. Collectives run on a stream of each group, after the
/// work of the caller's current stream so far; wait() lets the current stream, not the host, wait
/// for them, and done() never waits. Sums have the bits of the host's transports: parts are
/// exchanged, and added in rank order. All ranks must post the collectives of a group in the same
/// order, as for every transport.
///
/// Messages go through the host (staged.h): a receive that is posted ahead would block what NCCL is
/// asked for after it. Barriers are the host's. Communicators are created when a group is first
/// used, with the help of `host`. Errors: Error{Comm} with NCCL's words and the call site. Threads:
/// as Transport.
std::unique_ptr<comm::Transport> make_nccl_transport(const NcclApi& api,
                                                     std::shared_ptr<comm::Transport> host,
                                                     Device device);

}  // namespace tessera::transports
