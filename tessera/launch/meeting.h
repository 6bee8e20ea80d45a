// SPDX-License-Identifier: Apache-2.0
// Where ranks that a launcher started find each other: an abstract unix socket, so that nothing has
// to be removed.
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

inline constexpr std::uint32_t kMeeting = ControlPage::kMagic ^ 2;  // of this protocol

/// What a rank says when it arrives.
struct Hello {
  std::uint32_t magic = kMeeting;
  std::int32_t rank = 0, world_size = 1;
  std::uint64_t mask_hash = 0;  ///< of its affinity mask
  std::uint64_t asked = 0;      ///< Options::asked
};
/// What rank 0 answers when all are there, with the descriptors: the control page, then the arenas.
/// Or why they will not be: then the error's words follow, what is wrong and its remedy.
struct Welcome {
  std::uint32_t magic = kMeeting;
  std::int32_t num_descriptors = 0;
  std::uint64_t arena_bytes = 0;
  std::int32_t same_mask = 1;  ///< all ranks may use the same processors: they have to share them
  std::uint32_t refused = 0;   ///< the kind of that error + 1
  std::uint32_t what_bytes = 0, fix_bytes = 0;
};

/// One connection, with the checks that both sides make: same user, whole messages, before the
/// deadline. Errors: Error{Comm} naming what did not come; Error{Environment} for sockets that
/// cannot be had.
class Connection {
 public:
  explicit Connection(Fd fd) : fd_(std::move(fd)) {}
  [[nodiscard]] int fd() const { return fd_.get(); }
  /// The peer's process; 0 if it belongs to another user.
  [[nodiscard]] pid_t peer() const;
  void send(const void* data, std::size_t bytes, const std::vector<int>& descriptors = {});
  /// False if nothing of that size came before `deadline`. Appends received descriptors to
  /// `descriptors`.
  bool receive(void* data,
               std::size_t bytes,
               double deadline,
               std::vector<Fd>* descriptors = nullptr);
  /// Descriptors in as many messages as the kernel needs.
  void send_descriptors(const std::vector<int>& descriptors);
  bool receive_descriptors(std::size_t count, double deadline, std::vector<Fd>& descriptors);

 private:
  Fd fd_;
};

/// The socket on which rank 0 waits.
class Listener {
 public:
  /// Waits for an older holder of the name to go, until `deadline`.
  Listener(const std::string& name, int backlog, double deadline);
  [[nodiscard]] int fd() const { return fd_.get(); }
  /// The next connection of this user, or a closed one at the deadline.
  [[nodiscard]] Fd accept(double deadline);

 private:
  Fd fd_;
};

/// Waits until one of `waited` has news, which its `revents` then says; false at the deadline.
bool any_news(std::span<pollfd> waited, double deadline);
/// Connects to rank 0, which may still have to come; closed at the deadline.
Fd connect_to(const std::string& name, double deadline);
/// Name of the socket of `job` for this user.
std::string socket_name(const std::string& job);

}  // namespace tessera::launch
