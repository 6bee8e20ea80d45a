// SPDX-License-Identifier: Apache-2.0
// Channels of messages that a transport of a device prepares before their first message.
#pragma once

#include <span>

#include "tessera/comm/transport.h"

namespace tessera::comm {

/// Messages of one channel from one rank of the world to another.
struct MessageChannel {
  int from = 0, to = 0, channel = 0;
};

/// Implemented by transports that move the messages of prepared channels in a better way than
/// others. Messages of other channels need no preparation.
class MessageChannels {
 public:
  virtual ~MessageChannels() = default;
  /// Prepares the channels of which this rank is an end, and that are not prepared yet. All ranks
  /// must give the channels that they share in the same order. Blocks until the other ends have
  /// come.
  virtual void open_channels(std::span<const MessageChannel> channels, const CallSite& site) = 0;
};

}  // namespace tessera::comm
