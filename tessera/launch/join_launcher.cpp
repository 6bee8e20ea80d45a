// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/core.h>
#include <unistd.h>

#include "tessera/base/clock.h"
#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/text.h"
#include "tessera/launch/early_stop.h"
#include "tessera/launch/launch.h"
#include "tessera/launch/machine.h"
#include "tessera/launch/peer_watch.h"
#include "tessera/launch/rendezvous.h"
#include "tessera/launch/run_rank.h"
#include "tessera/launch/shared_files.h"
#include "tessera/launch/stop_signals.h"

namespace tessera::launch {
namespace {

/// The shared memory of the world as this rank received it.
struct Shared {
  int control = -1;
  std::vector<int> arenas;
  std::size_t arena_bytes = 0;
  bool same_mask = true;
};

Hello hello_of(const Launcher& launcher, const Options& options) {
  const std::vector<int> cores = affinity_cores();
  return {kRendezvous,
          launcher.local_rank,
          launcher.local_world_size,
          files::xxh3(std::as_bytes(std::span(cores))),
          options.asked,
          launcher.first_rank(),
          launcher.world_size};
}

[[noreturn]] void throw_missing(const Launcher& launcher,
                                const std::string& who,
                                double timeout_s) {
  throw Error(
      Error::Kind::Comm,
      fmt::format("{} did not arrive within {} s; {} says that {} ranks were started on this host",
                  who,
                  timeout_s,
                  launcher.name,
                  launcher.local_world_size),
      "start all of them, in the same network namespace and as the same user");
}

/// A connection to rank 0, and its rank once the peer has sent it.
struct Peer {
  Connection connection;
  pid_t pid = 0;
  int rank = -1;
  bool incompatible = false;
};

/// The server on rank 0, which keeps connections until all ranks have arrived.
class RendezvousServer {
 public:
  RendezvousServer(const Launcher& launcher, const Options& options)
      : launcher_(launcher),
        connect_(options.connect),
        timeout_s_(options.join_timeout_s),
        deadline_(now_s() + options.join_timeout_s),
        // Of several hosts, the page and the arenas are those of all ranks.
        files_(launcher.world_size, options.arena_bytes),
        listener_(socket_name(launcher.job), launcher.local_world_size, deadline_),
        own_(hello_of(launcher, options)) {}

  /// Returns what the ranks share, and the connection to the other hosts, if there are any.
  std::pair<Shared, std::unique_ptr<JobConnection>> meet() {
    std::unique_ptr<JobConnection> others;
    files_.control().line(launcher_.first_rank()).pid = static_cast<std::uint32_t>(getpid());
    try {
      while (arrived_ < launcher_.local_world_size - 1)
        wait_for_peers();
      if (connect_) others = connect_();
      for (Peer& peer : peers_)
        welcome(peer);
    } catch (const Error& error) {
      refuse_all(error);
      throw;
    }
    files_.keep();
    return {Shared{files_.control_fd(), files_.arenas(), files_.arena_bytes(), same_mask_},
            std::move(others)};
  }

 private:
  /// Waits for events once: first handles connected peers, then accepts a new one.
  void wait_for_peers() {
    std::vector<pollfd> waited = {{listener_.fd(), POLLIN, 0}};
    for (const Peer& peer : peers_)
      waited.push_back({peer.connection.fd(), POLLIN, 0});
    if (!wait_for_events(waited, deadline_)) throw_missing(launcher_, missing(), timeout_s_);
    for (std::size_t i = 0; i < peers_.size(); ++i) {
      if (waited[i + 1].revents != 0) receive_from(peers_[i]);
    }
    std::erase_if(peers_, [](const Peer& peer) { return peer.incompatible; });
    if (waited[0].revents == 0) return;
    Peer peer{Connection(listener_.accept(deadline_))};
    peer.pid = peer.connection.peer();
    if (peer.pid != 0) peers_.push_back(std::move(peer));
  }

  void receive_from(Peer& peer) {
    // A peer that has said hello sends nothing more, so this is the end of its connection.
    if (peer.rank >= 0) throw ended(peer);
    Hello hello;
    // Processes that do not speak the protocol get no answer.
    peer.incompatible =
        !peer.connection.receive(&hello, sizeof(hello), deadline_) || hello.magic != kRendezvous;
    if (!peer.incompatible) admit(peer, hello);
  }

  void admit(Peer& peer, const Hello& hello) {
    TESSERA_REQUIRE(
        hello.world_size == own_.world_size && hello.rank > 0 && hello.rank < own_.world_size,
        Config,
        fmt::format("local rank 0 of {} meets local rank {} of {}",
                    own_.world_size,
                    hello.rank,
                    hello.world_size),
        "start all ranks of a job with one call of the launcher");
    TESSERA_REQUIRE(
        hello.first_rank == own_.first_rank && hello.world == own_.world,
        Config,
        fmt::format(
            "local rank 0 is rank {} of {} and local rank {} is rank {} of {}: the ranks of a "
            "host must follow each other",
            own_.first_rank,
            own_.world,
            hello.rank,
            hello.first_rank + hello.rank,
            hello.world),
        "place ranks by slot: mpirun --map-by slot, srun --distribution=block");
    RankLine& line = files_.control().line(launcher_.first_rank() + hello.rank);
    TESSERA_REQUIRE(line.pid == 0,
                    Config,
                    fmt::format("two processes claim to be local rank {}: {} and {}",
                                hello.rank,
                                line.pid.load(),
                                peer.pid),
                    "start all ranks of a job with one call of the launcher");
    TESSERA_REQUIRE(
        hello.asked == own_.asked,
        Config,
        fmt::format("rank {} was started with another configuration than rank 0", hello.rank),
        "give every rank the same file and flags");
    line.pid = static_cast<std::uint32_t>(peer.pid);
    peer.rank = hello.rank;
    ++arrived_;
    same_mask_ = same_mask_ && hello.mask_hash == own_.mask_hash;
  }

  static Error ended(const Peer& peer) {
    return {
        Error::Kind::Comm,
        fmt::format("local rank {} (process {}) ended while the ranks met", peer.rank, peer.pid),
        "see its message"};
  }

  void welcome(Peer& peer) {
    std::vector<int> descriptors = {files_.control_fd()};
    for (const int arena : files_.arenas())
      descriptors.push_back(arena);
    Welcome reply{kRendezvous, static_cast<std::int32_t>(descriptors.size()), files_.arena_bytes()};
    reply.same_mask = same_mask_ ? 1 : 0;
    try {
      peer.connection.send(&reply, sizeof(reply));
      peer.connection.send_descriptors(descriptors);
    } catch (const Error&) {
      throw ended(peer);
    }
  }

  /// Sends every peer the reason why the world will not be created.
  void refuse_all(const Error& error) noexcept {
    const std::string what = error.what(), text = what + error.fix();
    Welcome reply{kRendezvous};
    reply.refused = static_cast<std::uint32_t>(error.kind()) + 1;
    reply.what_bytes = static_cast<std::uint32_t>(what.size());
    reply.fix_bytes = static_cast<std::uint32_t>(error.fix().size());
    for (Peer& peer : peers_) {
      try {
        peer.connection.send(&reply, sizeof(reply));
        peer.connection.send(text.data(), text.size());
      } catch (const Error&) {  // this is the peer that ended
      }
    }
  }

  std::string missing() const {
    std::vector<std::string> absent;
    for (int rank = 1; rank < launcher_.local_world_size; ++rank) {
      if (files_.control().line(rank).pid == 0) absent.push_back(std::to_string(rank));
    }
    return (absent.size() > 1 ? "local ranks " : "local rank ") + text::join(absent, ", ");
  }

  const Launcher& launcher_;
  const ConnectToJob& connect_;
  double timeout_s_, deadline_;
  SharedFiles files_;
  Listener listener_;
  Hello own_;
  std::vector<Peer> peers_;
  int arrived_ = 0;
  bool same_mask_ = true;
};

/// Throws the refusal of rank 0 if the reply is one.
void throw_refusal(Connection& host, const Welcome& reply, double deadline) {
  if (reply.magic != kRendezvous || reply.refused == 0) return;
  std::string text(std::size_t{reply.what_bytes} + reply.fix_bytes, '\0');
  if (!host.receive(text.data(), text.size(), deadline)) return;
  throw Error(static_cast<Error::Kind>(reply.refused - 1),
              text.substr(0, reply.what_bytes),
              text.substr(reply.what_bytes));
}

Shared join_rank_0(const Launcher& launcher, const Options& options) {
  const double deadline = now_s() + options.join_timeout_s;
  Connection host(connect_to(socket_name(launcher.job), deadline));
  if (now_s() >= deadline) throw_missing(launcher, "local rank 0", options.join_timeout_s);
  TESSERA_REQUIRE(host.peer() != 0,
                  Comm,
                  "another user, or another container, answers for local rank 0 of this job",
                  "");
  const Hello hello = hello_of(launcher, options);
  host.send(&hello, sizeof(hello));
  Welcome reply;
  std::vector<Fd> descriptors;
  // Local rank 0 may first read the files that all hosts compare; its end closes the connection.
  constexpr double kReadingS = 24 * 3600.0;
  const double until = deadline + (launcher.several_hosts() ? kReadingS : 0.0);
  const bool answered = host.receive(&reply, sizeof(reply), until) && reply.magic == kRendezvous;
  if (answered) throw_refusal(host, reply, until);
  const bool welcome = answered &&
                       host.receive_descriptors(
                           static_cast<std::size_t>(reply.num_descriptors), until, descriptors) &&
                       !descriptors.empty();
  if (!welcome) {
    if (now_s() >= until) throw_missing(launcher, "another local rank", options.join_timeout_s);
    throw Error(Error::Kind::Comm, "local rank 0 went away while the ranks met", "see its message");
  }
  Shared shared{descriptors.front().release(), {}, reply.arena_bytes, reply.same_mask != 0};
  for (std::size_t i = 1; i < descriptors.size(); ++i)
    shared.arenas.push_back(descriptors[i].release());
  return shared;
}

}  // namespace

RankInfo join_launcher(const Launcher& launcher, const Options& options) {
  allow_descriptors(3 * static_cast<std::size_t>(launcher.world_size));
  Shared shared;
  std::unique_ptr<JobConnection> others;
  if (launcher.local_rank == 0) {
    std::tie(shared, others) = RendezvousServer(launcher, options).meet();
  } else {
    shared = join_rank_0(launcher, options);
  }
  RankInfo info;
  info.rank = launcher.rank;
  info.world_size = launcher.world_size;
  info.local_rank = launcher.local_rank;
  info.local_world_size = launcher.local_world_size;
  info.arenas = shared.arenas;
  info.arena_bytes = shared.arena_bytes;
  info.control = shared.control;
  ControlPage& control = *map_control(shared.control, launcher.world_size);
  stop_on_signals(control, stop_signals(), SecondSignal::End);
  report_from_ranks(options);
  watch_peers(control, launcher.rank, options);
  if (others) {
    others->start(control, [](int) {});
    keep_connection(std::move(others));
  }
  if (shared.same_mask) {
    share_cores(info, options);
    pin(info.cores);
  } else {  // the launcher assigned processors to each rank
    info.threads = options.threads_per_rank > 0 ? options.threads_per_rank : usable_cores();
  }
  return info;
}

}  // namespace tessera::launch
