// SPDX-License-Identifier: Apache-2.0
#include "tessera/hosts/frames.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>

#include <fcntl.h>
#include <fmt/core.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tessera/base/clock.h"
#include "tessera/base/error.h"
#include "tessera/launch/rendezvous.h"

namespace tessera::hosts {
namespace {

constexpr std::uint32_t kWireMagic = 0x74736872;  // "tshr"
constexpr std::uint32_t kWireVersion = 2;
constexpr double kHandshakeS = 5.0;
constexpr double kSendS = 20.0;
constexpr useconds_t kRetryUs = 50000;

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

/// The addresses of a name, freed with the object.
class Addresses {
 public:
  Addresses(const std::string& name, int port) {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    error_ = getaddrinfo(name.c_str(), std::to_string(port).c_str(), &hints, &list_);
  }
  ~Addresses() {
    if (list_ != nullptr) freeaddrinfo(list_);
  }
  Addresses(const Addresses&) = delete;
  Addresses& operator=(const Addresses&) = delete;
  [[nodiscard]] const addrinfo* first() const { return list_; }
  [[nodiscard]] int error() const { return error_; }

 private:
  addrinfo* list_ = nullptr;
  int error_ = 0;
};

launch::Fd connect_one(const addrinfo& to, double deadline, std::string& why) {
  launch::Fd fd(socket(to.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (fd.get() < 0) return launch::Fd();
  if (connect(fd.get(), to.ai_addr, to.ai_addrlen) != 0) {
    pollfd waited{fd.get(), POLLOUT, 0};
    const bool pending = errno == EINPROGRESS && launch::wait_for_events({&waited, 1}, deadline);
    int error = pending ? 0 : errno;
    socklen_t length = sizeof(error);
    if (pending) getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &length);
    if (error != 0) {
      why = std::strerror(error);
      return launch::Fd();
    }
  }
  const int on = 1;
  setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  return fd;
}

/// Proves both sides to each other; otherwise says what the listener is instead. A fix means that
/// the listener is a part of tessera.
std::optional<Mismatch> shake_hands(int fd, const Secret& secret, int world) {
  const double deadline = now_s() + kHandshakeS;
  const Introduction own = introduction(secret, world);
  constexpr std::size_t kCommon = 2 * sizeof(std::uint32_t);  // of all versions
  Greeting greeting;
  if (!receive_all(fd, &greeting, kCommon, deadline) || !is_of_tessera(greeting.about))
    return Mismatch{"is another program", ""};
  if (greeting.about.version != own.version) {
    static_cast<void>(send_all(fd, &own, sizeof(own), deadline));  // the listener says so, too
    return mismatch(own, greeting.about);
  }
  if (!receive_all(fd,
                   reinterpret_cast<std::byte*>(&greeting) + kCommon,
                   sizeof(greeting) - kCommon,
                   deadline))
    return Mismatch{"ended the connection", ""};
  ClientProof proof{own, random_bytes()};
  proof.mac = client_mac(secret, greeting, proof);
  Mac answer{};
  const bool answered = send_all(fd, &proof, sizeof(proof), deadline) &&
                        receive_all(fd, &answer, sizeof(answer), deadline);
  if (answered && same_mac(answer, server_mac(secret, greeting, proof))) return std::nullopt;
  return mismatch(own, greeting.about);
}

}  // namespace

FrameWriter::FrameWriter(FrameType type) {
  bytes_.assign(sizeof(std::uint32_t), '\0');
  bytes_ += static_cast<char>(type);
}

FrameWriter& FrameWriter::text(std::string_view value) {
  number(static_cast<std::uint32_t>(value.size()));
  bytes_ += value;
  return *this;
}

std::string FrameWriter::finish() const {
  std::string whole = bytes_;
  const auto length = static_cast<std::uint32_t>(whole.size() - sizeof(std::uint32_t));
  std::memcpy(whole.data(), &length, sizeof(length));
  return whole;
}

std::string_view FrameReader::take(std::size_t bytes) {
  TESSERA_REQUIRE(bytes <= rest_.size(), Comm, "a frame of another host is too short", "");
  const std::string_view part = rest_.substr(0, bytes);
  rest_.remove_prefix(bytes);
  return part;
}

std::string FrameReader::text() {
  const auto length = number<std::uint32_t>();
  return std::string(take(length));
}

std::optional<Frame> FrameBuffer::next() {
  std::uint32_t length = 0;
  if (bytes_.size() < sizeof(length)) return std::nullopt;
  std::memcpy(&length, bytes_.data(), sizeof(length));
  TESSERA_REQUIRE(length >= 1 && length <= kMostFrameBytes,
                  Comm,
                  fmt::format("a frame of another host has {} bytes", length),
                  "");
  if (bytes_.size() < sizeof(length) + length) return std::nullopt;
  Frame frame{static_cast<FrameType>(bytes_[sizeof(length)]),
              bytes_.substr(sizeof(length) + 1, length - 1)};
  bytes_.erase(0, sizeof(length) + length);
  return frame;
}

Introduction introduction(const Secret& secret, int world) {
  return {kWireMagic,
          kWireVersion,
          static_cast<std::uint32_t>(std::max(world, 0)),
          secret.guessable ? 1U : 0U};
}

bool is_of_tessera(const Introduction& about) {
  return about.magic == kWireMagic;
}

Mismatch mismatch(const Introduction& own, const Introduction& other) {
  if (own.version != other.version) {
    return {fmt::format("runs another version of tessera (protocol {}, and {} here)",
                        other.version,
                        own.version),
            "install the same program on every host, at the same path"};
  }
  if (own.world != other.world && own.world != 0 && other.world != 0) {
    return {fmt::format("was started for {} ranks, and this host for {}", other.world, own.world),
            "start all hosts with the same number of hosts and the same -n"};
  }
  if (own.guessable != other.guessable) {
    return {other.guessable != 0 ? "has no secret, and this host has one"
                                 : "has a secret, and this host has none",
            fmt::format("set {} on every host to copies of one file", kSecretFile)};
  }
  return {"has another secret than this host",
          fmt::format(
              "give every host the same address and port of the coordinator, and the same file {}; "
              "if another job uses that port, choose another one",
              kSecretFile)};
}

Greeting new_greeting(const Secret& secret, int world) {
  return {introduction(secret, world), random_bytes()};
}

Mac client_mac(const Secret& secret, const Greeting& greeting, const ClientProof& proof) {
  return mac_of(secret, {bytes_of("tessera client"), greeting.nonce, proof.nonce});
}

Mac server_mac(const Secret& secret, const Greeting& greeting, const ClientProof& proof) {
  return mac_of(secret, {bytes_of("tessera server"), greeting.nonce, proof.nonce});
}

bool send_all(int fd, const void* data, std::size_t bytes, double deadline) noexcept {
  const auto* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t sent = ::send(fd, at, bytes, MSG_NOSIGNAL);
    if (sent > 0) {
      at += sent;
      bytes -= static_cast<std::size_t>(sent);
      continue;
    }
    if (sent < 0 && errno == EINTR) continue;
    pollfd waited{fd, POLLOUT, 0};
    if (sent == 0 || (errno != EAGAIN && errno != EWOULDBLOCK) ||
        !launch::wait_for_events({&waited, 1}, deadline))
      return false;
  }
  return true;
}

bool receive_all(int fd, void* data, std::size_t bytes, double deadline) noexcept {
  auto* at = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t got = recv(fd, at, bytes, MSG_DONTWAIT);
    if (got > 0) {
      at += got;
      bytes -= static_cast<std::size_t>(got);
      continue;
    }
    if (got < 0 && errno == EINTR) continue;
    pollfd waited{fd, POLLIN, 0};
    if (got == 0 || (errno != EAGAIN && errno != EWOULDBLOCK) ||
        !launch::wait_for_events({&waited, 1}, deadline))
      return false;
  }
  return true;
}

std::string peer_address(int fd) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  std::array<char, NI_MAXHOST> host{};
  std::array<char, NI_MAXSERV> port{};
  const bool known = getpeername(fd, reinterpret_cast<sockaddr*>(&address), &length) == 0 &&
                     getnameinfo(reinterpret_cast<const sockaddr*>(&address),
                                 length,
                                 host.data(),
                                 host.size(),
                                 port.data(),
                                 port.size(),
                                 NI_NUMERICHOST | NI_NUMERICSERV) == 0;
  return known ? fmt::format("{}:{}", host.data(), port.data()) : "an unknown address";
}

FrameClient::FrameClient(const std::string& address,
                         int port,
                         int ports,
                         const Secret& secret,
                         double deadline,
                         int world) {
  std::string why = "nothing listens there", fix;
  for (;;) {
    for (int at = port; at < port + ports; ++at) {
      const Addresses found(address, at);
      TESSERA_REQUIRE(
          found.error() == 0 || found.error() == EAI_AGAIN,
          Config,
          fmt::format(
              "the address of the host of rank 0, {}: {}", address, gai_strerror(found.error())),
          "set MASTER_ADDR, or --master_addr, to a name or address that every host knows");
      for (const addrinfo* one = found.first(); one != nullptr; one = one->ai_next) {
        std::string reason;
        launch::Fd fd = connect_one(*one, std::min(deadline, now_s() + kHandshakeS), reason);
        std::optional<Mismatch> other;
        if (fd.get() >= 0) {
          other = shake_hands(fd.get(), secret, world);
          if (!other) {
            fd_ = std::move(fd);
            return;
          }
          reason = "what listens there " + other->what;
        }
        // An error of a listener is more informative than that no process listens on another port,
        // and that of another part of tessera is the most informative one.
        const bool informative = other && (fix.empty() || !other->fix.empty());
        if (informative || (at == port && fix.empty())) {
          why = fmt::format("port {}: {}", at, reason);
          fix = other ? other->fix : "";
        }
      }
    }
    if (now_s() >= deadline) {
      throw Error(fix.empty() ? Error::Kind::Comm : Error::Kind::Config,
                  fmt::format("the host of rank 0 does not answer at {}, ports {} to {}: {}",
                              address,
                              port,
                              port + ports - 1,
                              why),
                  !fix.empty() ? fix
                               : "check that rank 0 runs, that MASTER_ADDR and MASTER_PORT are the "
                                 "same on every host, and that no firewall is between them");
    }
    usleep(kRetryUs);
  }
}

std::string FrameClient::own_address() const {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  std::array<char, NI_MAXHOST> host{};
  const bool known = getsockname(fd_.get(), reinterpret_cast<sockaddr*>(&address), &length) == 0 &&
                     getnameinfo(reinterpret_cast<const sockaddr*>(&address),
                                 length,
                                 host.data(),
                                 host.size(),
                                 nullptr,
                                 0,
                                 NI_NUMERICHOST) == 0;
  return known ? host.data() : "";
}

bool FrameClient::send(const FrameWriter& frame) {
  const std::string whole = frame.finish();
  if (!closed_) closed_ = !send_all(fd_.get(), whole.data(), whole.size(), now_s() + kSendS);
  return !closed_;
}

std::optional<Frame> FrameClient::receive(double deadline) {
  std::array<char, 65536> part;
  for (;;) {
    if (std::optional<Frame> frame = buffer_.next()) return frame;
    if (closed_) return std::nullopt;
    pollfd waited{fd_.get(), POLLIN, 0};
    if (!launch::wait_for_events({&waited, 1}, deadline)) return std::nullopt;
    const ssize_t got = recv(fd_.get(), part.data(), part.size(), MSG_DONTWAIT);
    if (got > 0) buffer_.append(part.data(), static_cast<std::size_t>(got));
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR))
      closed_ = true;
  }
}

}  // namespace tessera::hosts
