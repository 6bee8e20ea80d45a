// SPDX-License-Identifier: Apache-2.0
// Protocol by which ranks started by a launcher find each other: an abstract unix socket, so that
// nothing has to be removed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <poll.h>
#include <sys/types.h>

#include "tessera/base/control_page.h"
#include "tessera/launch/shared_files.h"

namespace tessera::launch {

inline constexpr std::uint32_t kRendezvous =
    ControlPage::kMagic ^ 2;  // magic number of this protocol

/// Message of a rank when it arrives.
struct Hello {
  std::uint32_t magic = kRendezvous;
  std::int32_t rank = 0, world_size = 1;
  std::uint64_t mask_hash = 0;             ///< hash of its affinity mask
  std::uint64_t asked = 0;                 ///< Options::asked
  std::int32_t first_rank = 0, world = 1;  ///< of all hosts: the rank of local rank 0, and the size
};
/// Reply of rank 0 when all ranks have arrived, sent with the descriptors: the control page, then
/// the arenas. Or a refusal; then the text of the error follows (problem, then fix).
struct Welcome {
  std::uint32_t magic = kRendezvous;
  std::int32_t num_descriptors = 0;
  std::uint64_t arena_bytes = 0;
  std::int32_t same_mask =
      1;                      ///< all ranks may use the same processors, so they have to share them
  std::uint32_t refused = 0;  ///< 1 + the kind of the error; 0: not refused
  std::uint32_t what_bytes = 0, fix_bytes = 0;
};

/// One connection, with the checks that both sides make: same user, complete messages, before the
/// deadline. Throws Error{Comm} naming what did not arrive; Error{Environment} if a socket cannot
/// be created.
class Connection {
 public:
  explicit Connection(Fd fd) : fd_(std::move(fd)) {}
  [[nodiscard]] int fd() const { return fd_.get(); }
  /// Returns the process of the peer; 0 if it belongs to another user.
  [[nodiscard]] pid_t peer() const;
  void send(const void* data, std::size_t bytes, const std::vector<int>& descriptors = {});
  /// Returns false if no message of that size arrived before `deadline`. Appends received
  /// descriptors to `descriptors`.
  bool receive(void* data,
               std::size_t bytes,
               double deadline,
               std::vector<Fd>* descriptors = nullptr);
  /// Sends the descriptors in as many messages as the kernel requires.
  void send_descriptors(const std::vector<int>& descriptors);
  bool receive_descriptors(std::size_t count, double deadline, std::vector<Fd>& descriptors);

 private:
  Fd fd_;
};

/// The socket on which rank 0 listens.
class Listener {
 public:
  /// Waits until an older holder of the name is gone, at most until `deadline`.
  Listener(const std::string& name, int backlog, double deadline);
  [[nodiscard]] int fd() const { return fd_.get(); }
  /// Returns the next connection of this user, or a closed one at the deadline.
  [[nodiscard]] Fd accept(double deadline);

 private:
  Fd fd_;
};

/// Waits until one of `waited` has an event, which is then set in its `revents`; returns false at
/// the deadline.
bool wait_for_events(std::span<pollfd> waited, double deadline);
/// Connects to rank 0, which may not be listening yet; returns a closed descriptor at the deadline.
Fd connect_to(const std::string& name, double deadline);
/// Returns the socket name of `job` for this user.
std::string socket_name(const std::string& job);

}  // namespace tessera::launch
