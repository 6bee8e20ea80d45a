// SPDX-License-Identifier: Apache-2.0
#include "tessera/launch/refusal.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "tessera/base/clock.h"
#include "tessera/launch/rendezvous.h"

namespace tessera::launch {
namespace {

constexpr std::chrono::milliseconds kLook{20};

/// The abstract address of a name.
struct Address {
  sockaddr_un address{};
  socklen_t length = 0;
  explicit Address(const std::string& name) {
    address.sun_family = AF_UNIX;
    const std::size_t bytes = std::min(name.size(), sizeof(address.sun_path) - 1);
    std::memcpy(address.sun_path + 1, name.data(), bytes);
    length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + bytes);
  }
  [[nodiscard]] const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
};

int new_socket() {
  return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

/// Returns a socket that listens at the address; -1 if another process does.
int listen_at(const Address& address, int backlog) {
  const int fd = new_socket();
  if (fd >= 0 && bind(fd, address.get(), address.length) == 0 && listen(fd, backlog) == 0)
    return fd;
  if (fd >= 0) close(fd);
  return -1;
}

/// Returns whether another rank reports it.
bool is_told_by_another(const Address& address) {
  const int fd = new_socket();
  if (fd < 0) return false;
  const bool told = connect(fd, address.get(), address.length) == 0;
  close(fd);
  return told;
}

}  // namespace

Refusal::Refusal(const Launcher& launcher, const std::string& text, double patience_s) noexcept
    : others_(launcher.local_world_size - 1), patience_s_(patience_s) {
  if (others_ < 1) return;
  try {
    const Address address(socket_name(launcher.job + " is refused: " + text));
    const double until = now_s() + patience_s;
    while (launcher.local_rank > 0 && now_s() < until) {
      if (is_told_by_another(address)) {
        told_here_ = false;
        return;
      }
      std::this_thread::sleep_for(kLook);
    }
    listener_ = listen_at(address, others_);
    told_here_ = listener_ >= 0 || !is_told_by_another(address);
  } catch (const std::exception&) {
    told_here_ = true;
  }
}

Refusal::~Refusal() {
  if (listener_ < 0) return;
  const double until = now_s() + patience_s_;
  for (int asked = 0; asked < others_ && now_s() < until;) {
    pollfd waited{listener_, POLLIN, 0};
    poll(&waited, 1, static_cast<int>((until - now_s()) * 1e3) + 1);
    const int fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd < 0) continue;
    ++asked;
    close(fd);
  }
  close(listener_);
}

}  // namespace tessera::launch
