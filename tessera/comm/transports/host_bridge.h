// SPDX-License-Identifier: Apache-2.0
// Carries the pull protocol between hosts. A slot that a rank posts is sent once to every other
// host that has members of its group; there one rank posts it again, in the arena that this host
// keeps for the sender. The ranks of that host then read it as if the sender were on their host:
// with the same checks, in the same order, and therefore with the same bits.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tessera/comm/transports/channel.h"
#include "tessera/comm/transports/host_link.h"

namespace tessera::comm {

/// One for each rank of a world of several hosts. It has two threads for each other host: one sends
/// the slots of this rank, the other receives slots of a rank of that host, which this rank posts
/// again. Bytes sent: an all-gather or a broadcast sends its input once to each host; a
/// reduce-scatter or an all-to-all sends the parts of that host's members. The inputs of a
/// reduction are sent one by one and added in rank order by the receiver. Messages of one group or
/// channel keep their order; small ones overtake large ones of others.
class HostBridge {
 public:
  HostBridge(ChannelContext& context, HostLayout layout, std::unique_ptr<HostLink> link);
  /// Sends everything posted, then waits until the other hosts have sent what they posted: at most
  /// kLeaveSeconds, and not at all in a broken world or while an exception unwinds the caller.
  ~HostBridge();
  HostBridge(const HostBridge&) = delete;
  HostBridge& operator=(const HostBridge&) = delete;

  [[nodiscard]] std::string_view name() const { return link_->name(); }
  /// Returns whether the ranks are on more than one host.
  [[nodiscard]] bool crosses(const std::vector<int>& ranks) const;
  /// Sends a slot of this rank that was just published, whose input is at `data`. The slot is
  /// marked as read by the members of other hosts once it has been sent. Never blocks.
  void post(const Channel& channel,
            std::uint64_t sequence,
            const Signature& signature,
            const std::string& site,
            Slot& slot,
            const std::byte* data,
            std::size_t bytes);
  /// Returns the bytes that this rank has sent to other hosts.
  [[nodiscard]] std::uint64_t bytes_sent() const { return bytes_sent_; }

 private:
  struct Posted;  // the head of a message
  struct Outgoing;
  struct Sender;
  /// The members of a channel on one other host, and their positions in the group.
  struct Route {
    int host = 0;
    std::vector<int> members;
  };
  class RemoteArena;

  const std::vector<Route>& routes_of(const Channel& channel);
  void run_sender(Sender& sender);
  void run_receiver(int peer);
  void receive_all(int peer, RemoteArena& arena);
  void fail(int peer, const std::string& why);
  void wait_for_receivers();

  ChannelContext& context_;
  HostLayout layout_;
  int host_;
  std::unique_ptr<HostLink> link_;
  std::map<std::uint64_t, std::vector<Route>> routes_;  // by the key of the channel
  std::vector<std::unique_ptr<Sender>> senders_;        // one for each other host
  std::vector<std::thread> receivers_;
  std::atomic<int> receiving_{0};
  std::atomic<bool> closing_{false};
  std::atomic<std::uint64_t> bytes_sent_{0};
  int exceptions_;
};

}  // namespace tessera::comm
