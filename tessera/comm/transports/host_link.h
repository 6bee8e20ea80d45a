// SPDX-License-Identifier: Apache-2.0
// Ordered messages between ranks of different hosts, and which rank is on which host.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

namespace tessera::comm {

/// The hosts of a world. The ranks of a host are contiguous.
struct HostLayout {
  std::vector<int> first;  ///< the first rank of each host, ascending, and the number of ranks

  [[nodiscard]] int hosts() const { return static_cast<int>(first.size()) - 1; }
  [[nodiscard]] int host_of(int rank) const {
    return static_cast<int>(std::upper_bound(first.begin(), first.end(), rank) - first.begin()) - 1;
  }
  [[nodiscard]] int begin(int host) const { return first[static_cast<std::size_t>(host)]; }
  [[nodiscard]] int size(int host) const { return begin(host + 1) - begin(host); }
  /// Returns the rank of `host` that receives the messages of `rank`, which is on another host.
  [[nodiscard]] int receiver(int rank, int host) const {
    return begin(host) + (rank - begin(host_of(rank))) % size(host);
  }
};

/// Messages between this rank and ranks of other hosts. Messages of one pair of ranks arrive whole
/// and in order. Threads: one for each peer and direction at a time.
class HostLink {
 public:
  using Bytes = std::span<const std::byte>;
  /// Receivers need to know the size of messages that are larger than this.
  static constexpr std::size_t kSmallBytes = std::size_t{32} << 10;
  virtual ~HostLink() = default;
  [[nodiscard]] virtual std::string_view name() const = 0;
  /// Sends each of `messages`; returns when their memory may be overwritten. Throws Error{Comm} if
  /// the peer is gone, or after close().
  virtual void send(int peer, std::span<const Bytes> messages) = 0;
  /// Receives one message. If `message` has at most kSmallBytes, it is memory for a message of at
  /// most its size, and the rest of it becomes undefined; otherwise the message has exactly its
  /// size. Throws as send().
  virtual void receive(int peer, std::span<std::byte> message) = 0;
  /// Ends all waiting calls, and all later ones. Threads: any.
  virtual void close() noexcept = 0;
};

}  // namespace tessera::comm
