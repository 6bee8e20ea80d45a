// SPDX-License-Identifier: Apache-2.0
// Carries the pull protocol between hosts. A slot that a rank posts is sent once to every other
// host that has members of its group; there one rank posts it again, in the arena that this host
// keeps for the sender. The ranks of that host then read it as if the sender were on their host:
// with the same checks, in the same order, and therefore with the same bits.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "tessera/comm/transports/channel.h"
#include "tessera/comm/transports/host_column.h"
#include "tessera/comm/transports/host_link.h"
#include "tessera/comm/transports/link_speed.h"
#include "tessera/memory/ledger.h"

namespace tessera::comm {

/// The meaning of data that one rank sends to one other for an operation of their group.
enum class Flow : std::uint32_t {
  Slot,         ///< none: the message is a slot that was posted
  Accumulator,  ///< what a reduction adds to, from its owner to the first host
  Partial,      ///< the sum of the hosts so far, to the next host
  Total         ///< the sum of all hosts
};

/// Memory for the data of one flow of one operation, which arrives in order. The thread that
/// receives it adds to `arrived`, the rank reads what has arrived.
struct Inbox {
  RegionPtr memory;
  std::size_t bytes = 0;
  std::atomic<std::size_t> arrived{0};

  [[nodiscard]] const std::byte* data() const {
    return static_cast<const std::byte*>(memory->data());
  }
};

/// One for each rank of a world of several hosts. It has two threads for each other host: one sends
/// the slots of this rank, the other receives slots of a rank of that host, which this rank posts
/// again. Bytes sent: an all-gather or a broadcast sends its input once to each host; a
/// reduce-scatter or an all-to-all sends the parts of that host's members. The inputs of a
/// reduction are sent one by one and added in rank order by the receiver, except for operations
/// whose sums go from host to host (host_chain.h). Messages of one group or channel keep their
/// order; small ones overtake large ones of others.
class HostBridge {
 public:
  /// Arriving data is charged to the current ledger, which must outlive this object.
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
  /// marked as read by the members of other hosts once it has been sent. Without `data` the other
  /// hosts learn that it was posted, and nothing else is sent. `parts`: Operation::Start::parts.
  /// Never blocks.
  void post(const Channel& channel,
            std::uint64_t sequence,
            const Signature& signature,
            const std::string& site,
            Slot& slot,
            const std::byte* data,
            std::size_t bytes,
            std::span<const std::size_t> parts);
  /// Returns memory for the data of a flow that `sender`, a rank of another host that sends to this
  /// one (HostLayout::receiver()), will send for operation `sequence` of the channel. To be called
  /// before this rank posts the operation; the sender waits for the post.
  std::shared_ptr<const Inbox> expect(int sender,
                                      Flow flow,
                                      const Channel& channel,
                                      std::uint64_t sequence,
                                      RegionPtr memory,
                                      std::size_t bytes);
  /// Sends `bytes` at `data`, which are in `memory`, to place `begin` of the receiver's inbox.
  /// Each flow of an operation is sent from its beginning to its end. Never blocks.
  void send(int receiver,
            Flow flow,
            const Channel& channel,
            std::uint64_t sequence,
            RegionPtr memory,
            const std::byte* data,
            std::size_t begin,
            std::size_t bytes);
  /// After this call memory that the sending threads have released may be written.
  void see_released_memory();
  /// Returns the ranks with which this one shares the work of a reduction over hosts, or null
  /// (column_of()).
  const HostColumn* column(const Group& group);
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

  /// Sender, flow, channel and number of the operation.
  using FlowName = std::tuple<int, Flow, std::uint64_t, std::uint64_t>;

  const std::vector<Route>& routes_of(const Channel& channel);
  void queue(int host, Outgoing&& out);
  void run_sender(Sender& sender);
  void run_receiver(int peer);
  void receive_all(int peer, RemoteArena& arena);
  void receive_into_inbox(int peer,
                          const Posted& head,
                          const std::function<void(std::byte*)>& receive_part);
  void receive_data(int peer, std::span<std::byte> place, LinkSpeed& speed);
  void fail(int peer, const std::string& why);
  void wait_for_receivers();

  ChannelContext& context_;
  HostLayout layout_;
  int host_;
  std::unique_ptr<HostLink> link_;
  memory::Ledger& ledger_;
  std::map<std::uint64_t, std::vector<Route>> routes_;  // by the key of the channel
  std::map<int, std::optional<HostColumn>> columns_;    // by the id of the group
  std::mutex inboxes_mutex_;
  std::map<FlowName, std::shared_ptr<Inbox>> inboxes_;  // those that are not full
  std::vector<std::unique_ptr<Sender>> senders_;        // one for each other host
  std::vector<std::thread> receivers_;
  std::atomic<int> receiving_{0};
  std::atomic<bool> closing_{false};
  std::atomic<std::uint64_t> bytes_sent_{0};
  int exceptions_;
};

}  // namespace tessera::comm
