// SPDX-License-Identifier: Apache-2.0
// Worlds of several "hosts" in one process: every host has its own memory files and control page,
// every rank is a thread, and the hosts are connected by socket pairs.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tessera/base/error.h"
#include "tessera/comm/transports/host_link.h"
#include "tessera/comm/transports/hosts.h"
#include "tessera/comm/watchdog.h"
#include "tessera/comm/world.h"

namespace tessera::test {

inline constexpr std::size_t kHostArenaBytes = std::size_t{1} << 30;

/// One socket for each ordered pair of ranks.
class SocketPairs {
 public:
  /// `sent` counts the bytes that are sent between hosts.
  SocketPairs(int ranks, std::shared_ptr<std::atomic<std::size_t>> sent)
      : ranks_(ranks), sent_(std::move(sent)) {
    for (int i = 0; i < ranks * ranks; ++i) {
      int ends[2];
      if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) throw std::runtime_error("socketpair");
      sending_.push_back(ends[0]);
      receiving_.push_back(ends[1]);
    }
  }
  ~SocketPairs() {
    for (const int fd : sending_)
      close(fd);
    for (const int fd : receiving_)
      close(fd);
  }
  SocketPairs(const SocketPairs&) = delete;
  SocketPairs& operator=(const SocketPairs&) = delete;
  [[nodiscard]] int sending(int from, int to) const { return sending_[index(from, to)]; }
  [[nodiscard]] int receiving(int from, int to) const { return receiving_[index(from, to)]; }
  [[nodiscard]] int ranks() const { return ranks_; }
  void count(std::size_t bytes) const { *sent_ += bytes; }
  [[nodiscard]] std::size_t sent() const { return *sent_; }

 private:
  [[nodiscard]] std::size_t index(int from, int to) const {
    return static_cast<std::size_t>(from * ranks_ + to);
  }
  int ranks_;
  std::shared_ptr<std::atomic<std::size_t>> sent_;
  std::vector<int> sending_, receiving_;
};

class SocketLink final : public comm::HostLink {
 public:
  SocketLink(int rank, const SocketPairs& pairs) : rank_(rank), pairs_(pairs) {}
  [[nodiscard]] std::string_view name() const override { return "sockets"; }
  void send(int peer, std::span<const Bytes> messages) override {
    for (const Bytes& message : messages) {
      const std::size_t size = message.size();
      send_all(peer, std::as_bytes(std::span(&size, 1)));
      send_all(peer, message);
      pairs_.count(size);
    }
  }
  void receive(int peer, std::span<std::byte> message) override {
    std::size_t size = 0;
    receive_all(peer, std::as_writable_bytes(std::span(&size, 1)));
    if (size != message.size() && (size > message.size() || message.size() > kSmallBytes))
      throw Error(Error::Kind::Comm, "the message has another size");
    receive_all(peer, message.first(size));
  }
  void close() noexcept override {
    for (int peer = 0; peer < pairs_.ranks(); ++peer) {
      shutdown(pairs_.sending(rank_, peer), SHUT_RDWR);
      shutdown(pairs_.receiving(peer, rank_), SHUT_RDWR);
    }
  }

 private:
  void send_all(int peer, Bytes bytes) {
    while (!bytes.empty()) {
      const ssize_t n =
          ::send(pairs_.sending(rank_, peer), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) throw Error(Error::Kind::Comm, "the socket is closed");
      bytes = bytes.subspan(static_cast<std::size_t>(n));
    }
  }
  void receive_all(int peer, std::span<std::byte> bytes) {
    if (recv(pairs_.receiving(peer, rank_), bytes.data(), bytes.size(), MSG_WAITALL) !=
        static_cast<ssize_t>(bytes.size()))
      throw Error(Error::Kind::Comm, "the socket is closed");
  }

  int rank_;
  const SocketPairs& pairs_;
};

/// The memory, the pages and the sockets of a world of several hosts.
class TestHosts {
 public:
  /// `per_host[h]`: ranks of host h. `sent` counts the bytes that are sent between hosts.
  explicit TestHosts(const std::vector<int>& per_host,
                     std::shared_ptr<std::atomic<std::size_t>> sent =
                         std::make_shared<std::atomic<std::size_t>>(0))
      : layout_(layout_of(per_host)), pairs_(ranks(), std::move(sent)), files_(per_host.size()) {
    for (std::vector<int>& arenas : files_) {
      for (int rank = 0; rank < ranks(); ++rank) {
        arenas.push_back(memfd_create("tessera-test", MFD_CLOEXEC));
        if (arenas.back() < 0 || ftruncate(arenas.back(), kHostArenaBytes) != 0)
          throw std::runtime_error("memfd");
      }
      pages_.push_back(comm::private_control_page(ranks()));
    }
  }
  ~TestHosts() {
    for (const std::vector<int>& arenas : files_) {
      for (const int file : arenas)
        close(file);
    }
  }
  TestHosts(const TestHosts&) = delete;
  TestHosts& operator=(const TestHosts&) = delete;

  [[nodiscard]] int ranks() const { return layout_.first.back(); }
  [[nodiscard]] std::size_t bytes_sent() const { return pairs_.sent(); }
  [[nodiscard]] std::unique_ptr<comm::HostLink> link_of(int rank) const {
    return std::make_unique<SocketLink>(rank, pairs_);
  }
  /// Returns the world of a rank; `owner` keeps this object alive as long as the world.
  [[nodiscard]] std::unique_ptr<comm::World> world_of(
      int rank,
      const mesh::Mesh& mesh,
      const std::shared_ptr<TestHosts>& owner = nullptr,
      std::unique_ptr<comm::HostLink> link = nullptr) const {
    const auto host = static_cast<std::size_t>(layout_.host_of(rank));
    const std::shared_ptr<ControlPage>& page = pages_[host];
    auto world = std::make_unique<comm::World>(
        rank,
        mesh,
        comm::make_hosts_transport(rank,
                                   files_[host],
                                   kHostArenaBytes,
                                   page.get(),
                                   layout_,
                                   link ? std::move(link) : link_of(rank)),
        owner ? std::shared_ptr<ControlPage>(owner, page.get()) : page);
    world->set_host(
        {static_cast<int>(host), layout_.hosts(), rank - layout_.begin(static_cast<int>(host))});
    return world;
  }
  /// Breaks the world on every host, as their heads do.
  void abort(int rank, const Error& error) const {
    for (const auto& page : pages_)
      comm::abort_world(*page, rank, error);
  }

 private:
  static comm::HostLayout layout_of(const std::vector<int>& per_host) {
    comm::HostLayout layout{{0}};
    for (const int ranks : per_host)
      layout.first.push_back(layout.first.back() + ranks);
    return layout;
  }

  comm::HostLayout layout_;
  SocketPairs pairs_;
  std::vector<std::vector<int>> files_;
  std::vector<std::shared_ptr<ControlPage>> pages_;
};

/// Runs `fn` on `per_host[h]` ranks of each host h; returns the bytes that were sent between hosts.
/// Rethrows the error of the first rank that failed.
inline std::size_t run_hosts(const std::vector<int>& per_host,
                             const mesh::Mesh& mesh,
                             const std::function<void(comm::World&)>& fn) {
  const TestHosts hosts(per_host);
  std::mutex mutex;
  std::exception_ptr failure;
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < hosts.ranks(); ++rank) {
      threads.emplace_back([&, rank] {
        try {
          fn(*hosts.world_of(rank, mesh));
        } catch (const Error& error) {
          const std::lock_guard lock(mutex);
          if (!failure) failure = std::current_exception();
          hosts.abort(rank, error);
        }
      });
    }
  }
  if (failure) std::rethrow_exception(failure);
  return hosts.bytes_sent();
}

/// Puts the first half of the ranks on one host and the others on a second one, for
/// TinyRun::use_world(). One training at a time.
class OnTwoHosts {
 public:
  std::unique_ptr<comm::World> operator()(comm::World& given) const {
    std::shared_ptr<TestHosts> hosts;
    {
      const std::lock_guard lock(state_->mutex);
      hosts = state_->hosts.lock();
      if (!hosts) {
        const int half = given.size() / 2;
        hosts =
            std::make_shared<TestHosts>(std::vector<int>{half, given.size() - half}, state_->sent);
        state_->hosts = hosts;
      }
    }
    std::unique_ptr<comm::World> world = hosts->world_of(given.rank(), given.mesh(), hosts);
    // After the barrier no rank can leave these hosts before all have come.
    given.transport().barrier(given.everyone(), TESSERA_HERE("hosts"))->wait();
    return world;
  }
  /// The bytes that all trainings have sent between the hosts.
  [[nodiscard]] std::size_t bytes_sent() const { return *state_->sent; }

 private:
  struct State {
    std::mutex mutex;
    std::weak_ptr<TestHosts> hosts;
    std::shared_ptr<std::atomic<std::size_t>> sent = std::make_shared<std::atomic<std::size_t>>(0);
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace tessera::test
