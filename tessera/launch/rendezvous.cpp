// SPDX-License-Identifier: Apache-2.0
#include "tessera/launch/rendezvous.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>

#include <fmt/core.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "tessera/base/clock.h"
#include "tessera/base/error.h"
#include "tessera/base/files.h"

namespace tessera::launch {
namespace {

constexpr std::size_t kDescriptorsPerMessage = 128;  // the kernel accepts 253
constexpr useconds_t kRetryUs = 5000;

Fd new_socket() {
  Fd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  TESSERA_REQUIRE(
      fd.get() >= 0, Environment, fmt::format("no unix socket: {}", std::strerror(errno)), "");
  return fd;
}

// An abstract name begins with a zero byte and exists in no file system.
std::pair<sockaddr_un, socklen_t> address_of(const std::string& name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::size_t length = std::min(name.size(), sizeof(address.sun_path) - 1);
  std::memcpy(address.sun_path + 1, name.data(), length);
  return {address, static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length)};
}

bool readable(int fd, double deadline) {
  pollfd waited{fd, POLLIN, 0};
  return wait_for_events({&waited, 1}, deadline);
}

}  // namespace

bool wait_for_events(std::span<pollfd> waited, double deadline) {
  for (;;) {
    const double left = deadline - now_s();
    const auto most_ms = static_cast<int>(std::ceil(std::max(0.0, left) * 1e3));
    const int ready = poll(waited.data(), waited.size(), most_ms);
    if (ready > 0) return true;
    if (ready == 0 || errno != EINTR) return false;
  }
}

std::string socket_name(const std::string& job) {
  const std::string whose = fmt::format("{} {}", getuid(), job);
  return "tessera-" + files::hex64(files::xxh3(std::as_bytes(std::span(whose))));
}

pid_t Connection::peer() const {
  ucred who{};
  socklen_t bytes = sizeof(who);
  const bool known = getsockopt(fd_.get(), SOL_SOCKET, SO_PEERCRED, &who, &bytes) == 0;
  return known && who.uid == getuid() ? who.pid : 0;
}

void Connection::send(const void* data, std::size_t bytes, const std::vector<int>& descriptors) {
  iovec part{const_cast<void*>(data), bytes};
  alignas(cmsghdr) char room[CMSG_SPACE(sizeof(int) * kDescriptorsPerMessage)] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!descriptors.empty()) {
    const std::size_t length = sizeof(int) * descriptors.size();
    message.msg_control = room;
    message.msg_controllen = CMSG_SPACE(length);
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(length);
    std::memcpy(CMSG_DATA(header), descriptors.data(), length);
  }
  TESSERA_REQUIRE(
      sendmsg(fd_.get(), &message, MSG_NOSIGNAL) == static_cast<ssize_t>(bytes),
      Comm,
      fmt::format("a local rank went away while the ranks met: {}", std::strerror(errno)),
      "see the other ranks' messages");
}

bool Connection::receive(void* data,
                         std::size_t bytes,
                         double deadline,
                         std::vector<Fd>* descriptors) {
  if (fd_.get() < 0 || !readable(fd_.get(), deadline)) return false;
  iovec part{data, bytes};
  alignas(cmsghdr) char room[CMSG_SPACE(sizeof(int) * kDescriptorsPerMessage)] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = room;
  message.msg_controllen = sizeof(room);
  const ssize_t got = recvmsg(fd_.get(), &message, MSG_CMSG_CLOEXEC);
  if (got < 0) return false;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    std::vector<int> received((header->cmsg_len - CMSG_LEN(0)) / sizeof(int));
    std::memcpy(received.data(), CMSG_DATA(header), received.size() * sizeof(int));
    for (const int fd : received) {
      Fd owned(fd);  // closed here if it is not kept
      if (descriptors != nullptr) descriptors->push_back(std::move(owned));
    }
  }
  return got == static_cast<ssize_t>(bytes);
}

void Connection::send_descriptors(const std::vector<int>& descriptors) {
  for (std::size_t i = 0; i < descriptors.size(); i += kDescriptorsPerMessage) {
    const std::size_t end = std::min(descriptors.size(), i + kDescriptorsPerMessage);
    const auto count = static_cast<std::int32_t>(end - i);
    send(&count,
         sizeof(count),
         std::vector<int>(descriptors.begin() + static_cast<std::ptrdiff_t>(i),
                          descriptors.begin() + static_cast<std::ptrdiff_t>(end)));
  }
}

bool Connection::receive_descriptors(std::size_t count,
                                     double deadline,
                                     std::vector<Fd>& descriptors) {
  while (descriptors.size() < count) {
    std::int32_t promised = 0;
    const std::size_t before = descriptors.size();
    if (!receive(&promised, sizeof(promised), deadline, &descriptors)) return false;
    if (promised < 1 || descriptors.size() != before + static_cast<std::size_t>(promised))
      return false;
  }
  return descriptors.size() == count;
}

Listener::Listener(const std::string& name, int backlog, double deadline) : fd_(new_socket()) {
  const auto [address, length] = address_of(name);
  while (bind(fd_.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) {
    TESSERA_REQUIRE(
        errno == EADDRINUSE && now_s() < deadline,
        Environment,
        fmt::format("cannot wait for the other local ranks: {}", std::strerror(errno)),
        errno == EADDRINUSE ? "two processes claim to be local rank 0 of this job" : "");
    usleep(kRetryUs);
  }
  TESSERA_REQUIRE(listen(fd_.get(), backlog) == 0,
                  Environment,
                  fmt::format("cannot wait for the other local ranks: {}", std::strerror(errno)),
                  "");
}

Fd Listener::accept(double deadline) {
  while (readable(fd_.get(), deadline)) {
    Fd peer(accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (peer.get() >= 0) return peer;
  }
  return Fd();
}

Fd connect_to(const std::string& name, double deadline) {
  const auto [address, length] = address_of(name);
  for (;;) {
    Fd fd = new_socket();
    if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) == 0) return fd;
    if (now_s() >= deadline) return Fd();
    usleep(kRetryUs);
  }
}

}  // namespace tessera::launch
