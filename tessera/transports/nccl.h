// SPDX-License-Identifier: Apache-2.0
// Collectives between GPUs by NCCL.
#pragma once

#include <memory>

#include "tessera/base/control_page.h"
#include "tessera/comm/transport.h"
#include "tessera/transports/nccl_api.h"

namespace tessera::transports {

/// The rank for which a transport is made.
struct NcclRank {
  int rank = 0;                    ///< of the world
  ControlPage* control = nullptr;  ///< of the world, which outlives the transport; may be absent
};

inline constexpr int kLeastQueues = 8;  ///< CUDA's default

/// A transport for the memory of `device`. Collectives run on a stream of each group, after the
/// work of the caller's current stream so far; wait() lets the current stream, not the host, wait
/// for them, and done() never waits. Sums have the bits of the host's transports: parts are
/// exchanged, and added in rank order. All ranks must post the collectives of a group in the same
/// order, as for every transport.
///
/// Messages of the channels that pipelines open (comm/message_channels.h) have a communicator of
/// two ranks and a stream for each channel and direction, so that a receive that is posted ahead
/// blocks nothing else; a send is complete for its caller when it is posted, because a copy is
/// sent. NCCL connects two ranks at their first message, which blocks both, so each channel is used
/// once when it is opened, in the order of the list. Other messages go through the host (staged.h),
/// and so do all if CUDA_DEVICE_MAX_CONNECTIONS leaves the device fewer than kLeastQueues hardware
/// queues: work of streams that share one waits for the work before it, so that two ranks could
/// wait for each other for ever.
///
/// Barriers are the host's. Communicators are created when a group is first used, with the help of
/// `host`. Errors: Error{Comm} with NCCL's words and the call site; operations that never become
/// complete: nccl_watch.h. Threads: as Transport.
std::unique_ptr<comm::Transport> make_nccl_transport(const NcclApi& api,
                                                     std::shared_ptr<comm::Transport> host,
                                                     Device device,
                                                     const NcclRank& rank);

}  // namespace tessera::transports
