// SPDX-License-Identifier: Apache-2.0
#include "tessera/hosts/copy_server.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <list>
#include <map>
#include <mutex>
#include <new>
#include <optional>
#include <span>
#include <thread>
#include <utility>

#include <fmt/core.h>
#include <malloc.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tessera/base/clock.h"
#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/hosts/frames.h"
#include "tessera/hosts/run_on_hosts.h"
#include "tessera/launch/rendezvous.h"

namespace tessera::hosts {
namespace {

constexpr double kHandshakeS = 5.0;
/// A connection ends if a transfer makes no progress for this long, or if no request comes.
constexpr double kStuckS = 20.0, kIdleS = 600.0;
constexpr std::size_t kMostConnections = 4096;
constexpr std::size_t kChunkBytes = std::size_t{1} << 20;
constexpr double kSilenceS = 300.0;
constexpr useconds_t kRetryUs = 5000;
constexpr const char* kRequest = "tessera-copies 1";

launch::Fd listen_on(const std::string& address, int& port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICHOST;
  addrinfo* list = nullptr;
  const int error = getaddrinfo(address.c_str(), "0", &hints, &list);
  TESSERA_REQUIRE(error == 0,
                  Environment,
                  fmt::format("{} is not an address: {}", address, gai_strerror(error)),
                  "");
  launch::Fd fd(socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const bool bound = fd.get() >= 0 && bind(fd.get(), list->ai_addr, list->ai_addrlen) == 0 &&
                     listen(fd.get(), SOMAXCONN) == 0;
  const int code = errno;
  freeaddrinfo(list);
  TESSERA_REQUIRE(
      bound, Environment, fmt::format("cannot listen on {}: {}", address, std::strerror(code)), "");
  sockaddr_storage own{};
  socklen_t length = sizeof(own);
  getsockname(fd.get(), reinterpret_cast<sockaddr*>(&own), &length);
  port = ntohs(own.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(own).sin6_port
                                         : reinterpret_cast<const sockaddr_in&>(own).sin_port);
  return fd;
}

/// Returns whether the client proves that it belongs to the job, and proves the same to it.
bool shake_hands(int fd, const Secret& secret) {
  const double deadline = now_s() + kHandshakeS;
  const Greeting greeting = new_greeting(secret);
  ClientProof proof;
  if (!send_all(fd, &greeting, sizeof(greeting), deadline) ||
      !receive_all(fd, &proof, sizeof(proof), deadline) ||
      !same_mac(proof.mac, client_mac(secret, greeting, proof)))
    return false;
  const Mac mac = server_mac(secret, greeting, proof);
  return send_all(fd, &mac, sizeof(mac), deadline);
}

/// Returns the next request, or nothing if the connection ends.
std::optional<Frame> next_request(int fd) {
  std::uint32_t length = 0;
  if (!receive_all(fd, &length, sizeof(length), now_s() + kIdleS)) return std::nullopt;
  if (length < 1 || length > kMostFrameBytes) return std::nullopt;
  std::string bytes(length, '\0');
  if (!receive_all(fd, bytes.data(), length, now_s() + kStuckS)) return std::nullopt;
  return Frame{static_cast<FrameType>(bytes.front()), bytes.substr(1)};
}

/// Transfers `bytes` as long as there is progress.
template <class Transfer>
bool in_chunks(std::byte* data, std::uint64_t bytes, Transfer transfer) {
  for (std::uint64_t at = 0; at < bytes;) {
    const std::uint64_t count = std::min<std::uint64_t>(kChunkBytes, bytes - at);
    if (!transfer(data + at, count, now_s() + kStuckS)) return false;
    at += count;
  }
  return true;
}

CopySet read_set(FrameReader& reader) {
  CopySet set;
  set.generation = reader.number<std::int32_t>();
  set.step = reader.number<std::int64_t>();
  return set;
}

}  // namespace

class CopyServer::Impl {
 public:
  Impl(const std::string& address, const Secret& secret)
      : secret_(secret), listening_(listen_on(address, port_)) {
    acceptor_ = std::thread([this] { accept_all(); });
  }
  ~Impl() {
    stopping_ = true;
    shutdown(listening_.get(), SHUT_RDWR);
    acceptor_.join();
    for (Client& client : clients_)
      shutdown(client.fd.get(), SHUT_RDWR);
    for (Client& client : clients_)
      client.thread.join();
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  [[nodiscard]] int port() const { return port_; }
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
  [[nodiscard]] std::vector<CopyListing> list() const {
    const std::scoped_lock lock(mutex_);
    std::vector<CopyListing> out;
    for (const auto& [set, held] : sets_) {
      CopyListing& listing = out.emplace_back(CopyListing{set, held.num_ranks, {}, held.ranks});
      for (const auto& [name, copy] : held.files)
        listing.names.push_back(name);
    }
    return out;
  }

 private:
  /// The bytes of one file, counted in a sum.
  class Copy {
   public:
    Copy(std::uint64_t bytes, std::atomic<std::uint64_t>& sum)
        : data_(new std::byte[bytes]), bytes_(bytes), sum_(sum) {
      sum_ += bytes_;
    }
    ~Copy() { sum_ -= bytes_; }
    Copy(const Copy&) = delete;
    Copy& operator=(const Copy&) = delete;
    [[nodiscard]] std::byte* data() const { return data_.get(); }
    [[nodiscard]] std::uint64_t bytes() const { return bytes_; }

   private:
    std::unique_ptr<std::byte[]> data_;
    std::uint64_t bytes_;
    std::atomic<std::uint64_t>& sum_;
  };

  struct Held {
    std::int32_t num_ranks = 0;
    std::map<std::string, std::shared_ptr<const Copy>> files;
    std::vector<std::int32_t> ranks;
  };
  struct Client {
    launch::Fd fd;
    std::thread thread;
    std::atomic<bool> ended{false};
  };

  void accept_all() {
    while (!stopping_) {
      launch::Fd fd(accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      clients_.remove_if([](Client& client) {
        if (client.ended) client.thread.join();
        return client.ended.load();
      });
      if (fd.get() < 0 || clients_.size() >= kMostConnections) {
        if (fd.get() < 0 && errno != EINTR && errno != ECONNABORTED) usleep(kRetryUs);
        continue;
      }
      const int on = 1;
      setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
      Client& client = clients_.emplace_back();
      client.fd = std::move(fd);
      client.thread = std::thread([this, &client] {
        serve(client.fd.get());
        shutdown(client.fd.get(), SHUT_RDWR);
        client.ended = true;
      });
    }
  }

  void serve(int fd) {
    if (!shake_hands(fd, secret_)) return;
    try {
      while (const std::optional<Frame> request = next_request(fd)) {
        if (!answer(fd, *request)) return;
      }
    } catch (const Error&) {
      return;  // a request that is too short
    } catch (const std::bad_alloc&) {
      return;  // the client reports that its copy was not taken
    }
  }

  bool answer(int fd, const Frame& request) {
    FrameReader reader(request);
    switch (request.type) {
      case FrameType::Put:
        return take(fd, reader);
      case FrameType::Fetch:
        return give(fd, reader);
      case FrameType::List:
        return tell(fd);
      default:
        return false;
    }
  }

  /// Receives a file. Nothing of it is seen by others before its last byte has arrived.
  bool take(int fd, FrameReader& reader) {
    const CopySet set = read_set(reader), keep = read_set(reader);
    const auto num_ranks = reader.number<std::int32_t>(), rank = reader.number<std::int32_t>();
    const bool is_last = reader.number<std::uint8_t>() != 0;
    const std::string name = reader.text();
    const auto bytes = reader.number<std::uint64_t>();
    {
      const std::scoped_lock lock(mutex_);
      if (set.generation < newest_generation_) return false;
      newest_generation_ = set.generation;
      std::erase_if(sets_, [&](const auto& one) { return one.first != set && one.first != keep; });
    }
    const auto copy = std::make_shared<const Copy>(bytes, bytes_);
    if (!in_chunks(copy->data(), bytes, [fd](std::byte* at, std::uint64_t count, double deadline) {
          return receive_all(fd, at, count, deadline);
        }))
      return false;
    {
      const std::scoped_lock lock(mutex_);
      Held& held = sets_[set];
      held.num_ranks = num_ranks;
      held.files[name] = copy;
      if (is_last) held.ranks.push_back(rank);
    }
    const std::uint8_t taken = 1;
    return send_all(fd, &taken, sizeof(taken), now_s() + kStuckS);
  }

  bool give(int fd, FrameReader& reader) {
    const CopySet set = read_set(reader);
    const std::string name = reader.text();
    const auto at = reader.number<std::uint64_t>();
    auto bytes = reader.number<std::uint64_t>();
    std::shared_ptr<const Copy> copy;
    {
      const std::scoped_lock lock(mutex_);
      const auto held = sets_.find(set);
      if (held == sets_.end()) return false;
      const auto file = held->second.files.find(name);
      if (file == held->second.files.end()) return false;
      copy = file->second;
    }
    if (at > copy->bytes()) return false;
    bytes = std::min(bytes, copy->bytes() - at);
    return send_all(fd, &bytes, sizeof(bytes), now_s() + kStuckS) &&
           in_chunks(copy->data() + at,
                     bytes,
                     [fd](std::byte* from, std::uint64_t count, double deadline) {
                       return send_all(fd, from, count, deadline);
                     });
  }

  bool tell(int fd) {
    FrameWriter writer(FrameType::List);
    const std::vector<CopyListing> all = list();
    writer.number(static_cast<std::uint32_t>(all.size()));
    for (const CopyListing& one : all) {
      writer.number(one.set.generation).number(one.set.step).number(one.num_ranks);
      writer.number(static_cast<std::uint32_t>(one.names.size()));
      for (const std::string& name : one.names)
        writer.text(name);
      writer.number(static_cast<std::uint32_t>(one.ranks.size()));
      for (const std::int32_t rank : one.ranks)
        writer.number(rank);
    }
    const std::string whole = writer.finish();
    return send_all(fd, whole.data(), whole.size(), now_s() + kStuckS);
  }

  const Secret secret_;
  int port_ = 0;
  launch::Fd listening_;
  std::atomic<bool> stopping_{false};
  std::atomic<std::uint64_t> bytes_{0};
  mutable std::mutex mutex_;
  std::map<CopySet, Held> sets_;
  std::int32_t newest_generation_ = -1;
  std::list<Client> clients_;  ///< changed by the acceptor only
  std::thread acceptor_;
};

CopyServer::CopyServer(const std::string& address, const Secret& secret)
    : impl_(std::make_unique<Impl>(address, secret)) {}

CopyServer::~CopyServer() = default;

int CopyServer::port() const {
  return impl_->port();
}

std::vector<CopyListing> CopyServer::list() const {
  return impl_->list();
}

std::uint64_t CopyServer::bytes() const {
  return impl_->bytes();
}

std::string copy_server_request(const Secret& secret, const std::string& coordinator) {
  return fmt::format("{}\n{}\n{}\nend\n", kRequest, to_hex(secret), coordinator);
}

void run_copy_server() {
  std::string text;
  std::array<char, 4096> part;
  while (!text.ends_with("\nend\n") && text.size() < part.size()) {
    const ssize_t got = read(STDIN_FILENO, part.data(), 1);
    if (got <= 0) break;
    text.append(part.data(), static_cast<std::size_t>(got));
  }
  const std::vector<std::string> lines = text::split(text, '\n');
  const std::optional<Secret> secret =
      lines.size() >= 4 && lines[0] == kRequest ? secret_from_hex(lines[1]) : std::nullopt;
  TESSERA_REQUIRE(secret.has_value(),
                  Config,
                  "standard input does not say which copies this process has to keep",
                  "such processes are started by: tessera train CONFIG --hostfile FILE");
  // Memory of files that are deleted returns to the system at once.
  mallopt(M_MMAP_THRESHOLD, static_cast<int>(kChunkBytes));
  const std::string address = address_towards(lines[2]);
  const CopyServer server(address, *secret);
  std::printf("%s %d\n", address.c_str(), server.port());
  std::fflush(stdout);
  for (;;) {
    pollfd waited{STDIN_FILENO, POLLIN, 0};
    const int ready = poll(&waited, 1, static_cast<int>(kSilenceS * 1e3));
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0 || read(STDIN_FILENO, part.data(), part.size()) <= 0) return;
  }
}

}  // namespace tessera::hosts
