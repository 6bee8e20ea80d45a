// SPDX-License-Identifier: Apache-2.0
#include "tessera/hosts/coordinator_connections.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <fmt/core.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tessera/base/clock.h"
#include "tessera/base/error.h"

namespace tessera::hosts {
namespace {

constexpr double kProofS = 5.0;             // for a connection to prove that it belongs to the job
constexpr std::size_t kMostStrangers = 64;  // most connections that have not yet proved it
constexpr std::size_t kMostTold = 32;       // most notices about strangers
constexpr int kMostEvents = 512;            // for one call of epoll_wait
// Most bytes buffered for a host that does not receive them.
constexpr std::size_t kMostUnsent = std::size_t{64} << 20;

}  // namespace

struct SocketPeer : CoordinatorPeer {
  launch::Fd fd;
  bool proved = false;
  Greeting greeting;
  std::string proof;  // received part of the client's proof
  FrameBuffer in;
  std::string out;
  double since = 0.0;
  bool queued = false;         // in CoordinatorConnections::queued_
  bool waits_to_send = false;  // the kernel tells when more can be sent
};

namespace {

/// All peers of these connections are on sockets.
SocketPeer& socket_of(CoordinatorPeer& peer) {
  return static_cast<SocketPeer&>(peer);
}

}  // namespace

CoordinatorConnections::~CoordinatorConnections() = default;

CoordinatorConnections::CoordinatorConnections(
    launch::Fd listener, const Secret& secret, int world, OnFrame on_frame, Tell tell)
    : listener_(std::move(listener)),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      secret_(secret),
      world_(world),
      on_frame_(std::move(on_frame)),
      tell_(std::move(tell)) {
  std::array<int, 2> ends{-1, -1};
  TESSERA_REQUIRE(epoll_.get() >= 0 && pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) == 0,
                  Environment,
                  fmt::format("no epoll or pipe: {}", std::strerror(errno)),
                  "ulimit -n 4096");
  wake_read_ = launch::Fd(ends[0]);
  wake_write_ = launch::Fd(ends[1]);
  watch(wake_read_.get(), &wake_read_, /*sends=*/false, EPOLL_CTL_ADD);
  watch(listener_.get(), &listener_, /*sends=*/false, EPOLL_CTL_ADD);
}

void CoordinatorConnections::watch(int fd, void* what, bool sends, int operation) const {
  epoll_event event{};
  event.events = sends ? EPOLLIN | EPOLLOUT : EPOLLIN;
  event.data.ptr = what;
  TESSERA_REQUIRE(epoll_ctl(epoll_.get(), operation, fd, &event) == 0,
                  Environment,
                  fmt::format("a connection cannot be watched: {}", std::strerror(errno)),
                  "raise /proc/sys/fs/epoll/max_user_watches");
}

void CoordinatorConnections::wake() const {
  const char byte = 0;
  static_cast<void>(!write(wake_write_.get(), &byte, 1));
}

void CoordinatorConnections::wait(double deadline) {
  std::array<epoll_event, kMostEvents> events;
  const double left_ms = std::ceil(std::max(0.0, deadline - now_s()) * 1e3);
  const int found = epoll_wait(epoll_.get(), events.data(), kMostEvents, static_cast<int>(left_ms));
  bool arrivals = false;
  for (int i = 0; i < found; ++i) {
    const epoll_event& event = events[static_cast<std::size_t>(i)];
    if (event.data.ptr == &listener_) {
      arrivals = true;
    } else if (event.data.ptr == &wake_read_) {
      std::array<char, 256> ignored;
      while (read(wake_read_.get(), ignored.data(), ignored.size()) > 0) {
      }
    } else {
      auto& peer = *static_cast<SocketPeer*>(event.data.ptr);
      if ((event.events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) receive(peer);
      if ((event.events & EPOLLOUT) != 0) flush(peer);
    }
  }
  if (arrivals) accept_all();
}

void CoordinatorConnections::accept_all() {
  for (;;) {
    launch::Fd fd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd.get() < 0) {
      const bool limit = errno == EMFILE || errno == ENFILE;
      if (limit) {
        // The socket would stay readable; it is tried again in a moment.
        accepts_ = false;
        epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, listener_.get(), nullptr);
      }
      if (limit && !std::exchange(told_of_limit_, true)) {
        tell_(fmt::format(
            "the coordinator cannot accept more than {} connections: {}; raise ulimit -n",
            peers_.size(),
            std::strerror(errno)));
      }
      return;
    }
    // All hosts of a large job arrive at once; strangers must not displace them.
    if (strangers_ >= kMostStrangers + 2 * static_cast<std::size_t>(world_)) continue;
    const int on = 1;
    setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    auto peer = std::make_unique<SocketPeer>();
    peer->from = peer_address(fd.get());
    peer->fd = std::move(fd);
    peer->greeting = new_greeting(secret_, world_);
    peer->since = peer->heard = now_s();
    watch(peer->fd.get(), peer.get(), /*sends=*/false, EPOLL_CTL_ADD);
    send(*peer, {reinterpret_cast<const char*>(&peer->greeting), sizeof(Greeting)});
    ++strangers_;
    SocketPeer& added = *peer;
    peers_.push_back(std::move(peer));
    flush(added);
  }
}

void CoordinatorConnections::receive(SocketPeer& peer) {
  std::array<char, 65536> part;
  while (!peer.closed) {
    const ssize_t got = recv(peer.fd.get(), part.data(), part.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (got <= 0) return close(peer);
    peer.heard = now_s();
    try {
      take(peer, {part.data(), static_cast<std::size_t>(got)});
    } catch (const Error& error) {
      // A process that tries again comes from another port.
      const std::string address = peer.from.substr(0, peer.from.rfind(':'));
      if (told_.size() < kMostTold && told_.insert(address + error.what()).second)
        tell_(fmt::format("the connection from {} was closed: {}", peer.from, error.what()));
      return close(peer);
    }
    // Usually nothing is left: another call would only return EAGAIN.
    if (static_cast<std::size_t>(got) < part.size()) return;
  }
}

void CoordinatorConnections::take(SocketPeer& peer, std::string_view bytes) {
  if (!peer.proved) {
    const std::size_t wanted = std::min(bytes.size(), sizeof(ClientProof) - peer.proof.size());
    peer.proof.append(bytes.substr(0, wanted));
    bytes.remove_prefix(wanted);
    check_proof(peer);
    if (!peer.proved) return;
  }
  peer.in.append(bytes.data(), bytes.size());
  while (const std::optional<Frame> frame = peer.in.next())
    on_frame_(peer, *frame);
}

void CoordinatorConnections::check_proof(SocketPeer& peer) {
  ClientProof proof;
  std::memcpy(&proof, peer.proof.data(), std::min(sizeof(proof), peer.proof.size()));
  if (peer.proof.size() < sizeof(Introduction)) return;
  // The messages of other versions have other lengths.
  const bool other_version =
      is_of_tessera(proof.about) && proof.about.version != introduction(secret_, world_).version;
  if (other_version) reject(peer, proof.about);
  if (peer.proof.size() < sizeof(proof)) return;
  if (!same_mac(proof.mac, client_mac(secret_, peer.greeting, proof))) reject(peer, proof.about);
  peer.proved = true;
  --strangers_;
  const Mac answer = server_mac(secret_, peer.greeting, proof);
  send(peer, {reinterpret_cast<const char*>(answer.data()), answer.size()});
}

void CoordinatorConnections::reject(const SocketPeer& peer, const Introduction& about) {
  std::string text = "it does not know the secret of this job";
  if (is_of_tessera(about)) {
    const Mismatch found = mismatch(introduction(secret_, world_), about);
    text += ": it " + found.what;
    Mismatch told = {
        fmt::format("a process at {} {}", peer.from.substr(0, peer.from.rfind(':')), found.what),
        found.fix};
    const bool known =
        std::ranges::any_of(rejected_, [&](const Mismatch& one) { return one.what == told.what; });
    if (!known && rejected_.size() < kMostTold) rejected_.push_back(std::move(told));
  }
  throw Error(Error::Kind::Comm, text, "");
}

void CoordinatorConnections::send(CoordinatorPeer& peer, std::string_view bytes) {
  SocketPeer& to = socket_of(peer);
  to.out += bytes;
  if (!std::exchange(to.queued, true)) queued_.push_back(&to);
}

void CoordinatorConnections::flush() {
  // A peer that waits for the kernel is flushed by its event.
  for (SocketPeer* const peer : queued_) {
    peer->queued = false;
    flush(*peer);
  }
  queued_.clear();
}

void CoordinatorConnections::flush(SocketPeer& peer) {
  std::size_t sent = 0;
  while (sent < peer.out.size() && !peer.closed) {
    const ssize_t part =
        ::send(peer.fd.get(), peer.out.data() + sent, peer.out.size() - sent, MSG_NOSIGNAL);
    if (part > 0) {
      sent += static_cast<std::size_t>(part);
    } else if (part < 0 && errno == EINTR) {
      continue;
    } else if (part < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      break;
    } else {
      close(peer);
    }
  }
  peer.out.erase(0, sent);
  if (peer.closed) return;
  if (peer.out.size() > kMostUnsent) return close(peer);
  const bool more = !peer.out.empty();
  if (more == peer.waits_to_send) return;
  peer.waits_to_send = more;
  watch(peer.fd.get(), &peer, more, EPOLL_CTL_MOD);
}

void CoordinatorConnections::close(CoordinatorPeer& peer) {
  peer.closed = any_closed_ = true;
}

void CoordinatorConnections::look(double now) {
  if (!std::exchange(accepts_, true))
    watch(listener_.get(), &listener_, /*sends=*/false, EPOLL_CTL_ADD);
  if (strangers_ == 0) return;
  for (const auto& peer : peers_) {
    const SocketPeer& one = socket_of(*peer);
    if (!one.proved && now > one.since + kProofS) close(*peer);
  }
}

void CoordinatorConnections::forget(const std::function<void(CoordinatorPeer&)>& closed) {
  if (!std::exchange(any_closed_, false)) return;
  // Those that the callback closes are forgotten by the next call.
  std::set<const CoordinatorPeer*> ended;
  for (const auto& peer : peers_) {
    if (peer->closed) ended.insert(peer.get());
  }
  for (const auto& peer : peers_) {
    if (!ended.contains(peer.get())) continue;
    strangers_ -= socket_of(*peer).proved ? 0 : 1;
    closed(*peer);
  }
  std::erase_if(queued_, [&](const SocketPeer* peer) { return ended.contains(peer); });
  std::erase_if(peers_, [&](const auto& peer) { return ended.contains(peer.get()); });
}

launch::Fd listen_on(const std::string& address, int port, std::string& why) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  if (const int error = getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &list);
      error != 0) {
    why = gai_strerror(error);
    return launch::Fd();
  }
  launch::Fd fd(socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int on = 1;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  const bool listening =
      bind(fd.get(), list->ai_addr, list->ai_addrlen) == 0 && listen(fd.get(), SOMAXCONN) == 0;
  if (!listening) why = std::strerror(errno);
  freeaddrinfo(list);
  return listening ? std::move(fd) : launch::Fd();
}

int port_of(int fd) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length);
  return ntohs(address.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                   : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

}  // namespace tessera::hosts
