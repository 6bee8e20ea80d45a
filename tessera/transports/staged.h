// SPDX-License-Identifier: Apache-2.0
// Moves memory of a device between ranks through pinned memory of their hosts.
#pragma once

#include <memory>

#include "tessera/comm/transport.h"

namespace tessera::transports {

/// A transport for the memory of `device` on top of one for memory of the host: the input is copied
/// to the host when an operation is posted, moved by `host`, and copied to the device when it is
/// waited for. Results have the bits of `host`. Regions are memory of the device. An operation that
/// overlaps the output of an earlier one completes that one first.
/// Cost: one copy in each direction, and posting waits for the work of the current stream. Threads:
/// as Transport.
std::unique_ptr<comm::Transport> make_staged_transport(std::shared_ptr<comm::Transport> host,
                                                       Device device);

}  // namespace tessera::transports
