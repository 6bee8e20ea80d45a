// SPDX-License-Identifier: Apache-2.0
#include <span>
#include <string>
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
#include "tessera/launch/meeting.h"
#include "tessera/launch/peer_watch.h"
#include "tessera/launch/run_rank.h"
#include "tessera/launch/shared_files.h"
#include "tessera/launch/stop_signals.h"

namespace tessera::launch {
namespace {

/// The memory of the world as this rank got it.
struct Shared {
  int control = -1;
  std::vector<int> arenas;
  std::size_t arena_bytes = 0;
  bool same_mask = true;
};

Hello hello_of(const Launcher& launcher, const Options& options) {
  const std::vector<int> cores = affinity_cores();
  return {kMeeting,
          launcher.local_rank,
          launcher.local_world_size,
          files::xxh3(std::as_bytes(std::span(cores))),
          options.asked};
}

[[noreturn]] void did_not_come(const Launcher& launcher, const std::string& who, double timeout_s) {
  throw Error(
      Error::Kind::Comm,
      fmt::format("{} did not arrive within {} s; {} says that {} ranks were started on this host",
                  who,
                  timeout_s,
                  launcher.name,
                  launcher.local_world_size),
      "start all of them, in the same network namespace and as the same user");
}

/// A connection to rank 0, and whose it is as soon as it has said so.
struct Guest {
  Connection connection;
  pid_t pid = 0;
  int rank = -1;
  bool stranger = false;
};

/// Rank 0's side: whoever arrives is kept until all are there.
class Host {
 public:
  Host(const Launcher& launcher, const Options& options)
      : launcher_(launcher),
        timeout_s_(options.join_timeout_s),
        deadline_(now_s() + options.join_timeout_s),
        files_(launcher.local_world_size, options.arena_bytes),
        listener_(socket_name(launcher.job), launcher.local_world_size, deadline_),
        own_(hello_of(launcher, options)) {}

  Shared meet() {
    files_.control().line(0).pid = static_cast<std::uint32_t>(getpid());
    try {
      while (arrived_ < launcher_.local_world_size - 1)
        hear();
      for (Guest& guest : guests_)
        welcome(guest);
    } catch (const Error& error) {
      tell_all(error);
      throw;
    }
    files_.keep();
    return {files_.control_fd(), files_.arenas(), files_.arena_bytes(), same_mask_};
  }

 private:
  /// One round of news: of those who are there, and then who comes.
  void hear() {
    std::vector<pollfd> waited = {{listener_.fd(), POLLIN, 0}};
    for (const Guest& guest : guests_)
      waited.push_back({guest.connection.fd(), POLLIN, 0});
    if (!any_news(waited, deadline_)) did_not_come(launcher_, missing(), timeout_s_);
    for (std::size_t i = 0; i < guests_.size(); ++i) {
      if (waited[i + 1].revents != 0) hear(guests_[i]);
    }
    std::erase_if(guests_, [](const Guest& guest) { return guest.stranger; });
    if (waited[0].revents == 0) return;
    Guest guest{Connection(listener_.accept(deadline_))};
    guest.pid = guest.connection.peer();
    if (guest.pid != 0) guests_.push_back(std::move(guest));
  }

  void hear(Guest& guest) {
    // It has nothing more to say.
    if (guest.rank >= 0) throw ended(guest);
    Hello hello;
    // Those who do not speak the protocol are not answered.
    guest.stranger =
        !guest.connection.receive(&hello, sizeof(hello), deadline_) || hello.magic != kMeeting;
    if (!guest.stranger) admit(guest, hello);
  }

  void admit(Guest& guest, const Hello& hello) {
    TESSERA_REQUIRE(
        hello.world_size == own_.world_size && hello.rank > 0 && hello.rank < own_.world_size,
        Config,
        fmt::format("local rank 0 of {} meets local rank {} of {}",
                    own_.world_size,
                    hello.rank,
                    hello.world_size),
        "start all ranks of a job with one call of the launcher");
    RankLine& line = files_.control().line(hello.rank);
    TESSERA_REQUIRE(line.pid == 0,
                    Config,
                    fmt::format("two processes say that they are local rank {}: {} and {}",
                                hello.rank,
                                line.pid.load(),
                                guest.pid),
                    "start all ranks of a job with one call of the launcher");
    TESSERA_REQUIRE(
        hello.asked == own_.asked,
        Config,
        fmt::format("rank {} was started with another configuration than rank 0", hello.rank),
        "give every rank the same file and flags");
    line.pid = static_cast<std::uint32_t>(guest.pid);
    guest.rank = hello.rank;
    ++arrived_;
    same_mask_ = same_mask_ && hello.mask_hash == own_.mask_hash;
  }

  static Error ended(const Guest& guest) {
    return {
        Error::Kind::Comm,
        fmt::format("local rank {} (process {}) ended while the ranks met", guest.rank, guest.pid),
        "see its message"};
  }

  void welcome(Guest& guest) {
    std::vector<int> descriptors = {files_.control_fd()};
    for (const int arena : files_.arenas())
      descriptors.push_back(arena);
    Welcome words{kMeeting, static_cast<std::int32_t>(descriptors.size()), files_.arena_bytes()};
    words.same_mask = same_mask_ ? 1 : 0;
    try {
      guest.connection.send(&words, sizeof(words));
      guest.connection.send_descriptors(descriptors);
    } catch (const Error&) {
      throw ended(guest);
    }
  }

  /// Why there will be no world.
  void tell_all(const Error& error) noexcept {
    const std::string what = error.what(), text = what + error.fix();
    Welcome words{kMeeting};
    words.refused = static_cast<std::uint32_t>(error.kind()) + 1;
    words.what_bytes = static_cast<std::uint32_t>(what.size());
    words.fix_bytes = static_cast<std::uint32_t>(error.fix().size());
    for (Guest& guest : guests_) {
      try {
        guest.connection.send(&words, sizeof(words));
        guest.connection.send(text.data(), text.size());
      } catch (const Error&) {  // it is the one that ended
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
  double timeout_s_, deadline_;
  SharedFiles files_;
  Listener listener_;
  Hello own_;
  std::vector<Guest> guests_;
  int arrived_ = 0;
  bool same_mask_ = true;
};

/// Throws what rank 0 says of the meeting, if it says so.
void throw_refusal(Connection& host, const Welcome& words, double deadline) {
  if (words.magic != kMeeting || words.refused == 0) return;
  std::string text(std::size_t{words.what_bytes} + words.fix_bytes, '\0');
  if (!host.receive(text.data(), text.size(), deadline)) return;
  throw Error(static_cast<Error::Kind>(words.refused - 1),
              text.substr(0, words.what_bytes),
              text.substr(words.what_bytes));
}

Shared visit(const Launcher& launcher, const Options& options) {
  const double deadline = now_s() + options.join_timeout_s;
  Connection host(connect_to(socket_name(launcher.job), deadline));
  if (now_s() >= deadline) did_not_come(launcher, "local rank 0", options.join_timeout_s);
  TESSERA_REQUIRE(host.peer() != 0,
                  Comm,
                  "another user, or another container, answers for local rank 0 of this job",
                  "");
  const Hello hello = hello_of(launcher, options);
  host.send(&hello, sizeof(hello));
  Welcome words;
  std::vector<Fd> descriptors;
  const bool answered = host.receive(&words, sizeof(words), deadline) && words.magic == kMeeting;
  if (answered) throw_refusal(host, words, deadline);
  const bool welcome =
      answered &&
      host.receive_descriptors(
          static_cast<std::size_t>(words.num_descriptors), deadline, descriptors) &&
      !descriptors.empty();
  if (!welcome) {
    if (now_s() >= deadline) did_not_come(launcher, "another local rank", options.join_timeout_s);
    throw Error(Error::Kind::Comm, "local rank 0 went away while the ranks met", "see its message");
  }
  Shared shared{descriptors.front().release(), {}, words.arena_bytes, words.same_mask != 0};
  for (std::size_t i = 1; i < descriptors.size(); ++i)
    shared.arenas.push_back(descriptors[i].release());
  return shared;
}

}  // namespace

RankInfo join_launcher(const Launcher& launcher, const Options& options) {
  allow_descriptors(3 * static_cast<std::size_t>(launcher.local_world_size));
  const Shared shared =
      launcher.local_rank == 0 ? Host(launcher, options).meet() : visit(launcher, options);
  RankInfo info;
  info.rank = launcher.rank;
  info.world_size = launcher.world_size;
  info.local_rank = launcher.local_rank;
  info.local_world_size = launcher.local_world_size;
  info.arenas = shared.arenas;
  info.arena_bytes = shared.arena_bytes;
  info.control = shared.control;
  ControlPage& control = *map_control(shared.control, launcher.local_world_size);
  stop_on_signals(control, stop_signals(), SecondSignal::End);
  report_from_ranks(options);
  watch_peers(control, launcher.local_rank, options);
  if (shared.same_mask) {
    share_cores(info, options);
    pin(info.cores);
  } else {  // the launcher gave each rank processors of its own
    info.threads = options.threads_per_rank > 0 ? options.threads_per_rank : usable_cores();
  }
  return info;
}

}  // namespace tessera::launch
