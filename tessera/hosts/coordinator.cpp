// SPDX-License-Identifier: Apache-2.0
#include "tessera/hosts/coordinator.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstring>
#include <future>
#include <limits>
#include <mutex>
#include <optional>
#include <utility>

#include <fmt/core.h>
#include <unistd.h>

#include "tessera/base/clock.h"
#include "tessera/base/control_page.h"
#include "tessera/base/error.h"
#include "tessera/base/quiet_thread.h"
#include "tessera/base/text.h"
#include "tessera/hosts/coordinator_client.h"
#include "tessera/hosts/coordinator_connections.h"
#include "tessera/hosts/coordinator_store.h"
#include "tessera/hosts/host_check.h"
#include "tessera/hosts/host_facts.h"
#include "tessera/hosts/job_end.h"
#include "tessera/launch/rank_end.h"
#include "tessera/launch/shared_files.h"

namespace tessera::hosts {
namespace {

constexpr double kTickS = 0.25;
constexpr double kAliveS = 1.0;         // interval between Alive frames
constexpr double kMostClockS = 2.0;     // largest difference of clocks without a warning
constexpr double kMoreProblemsS = 2.0;  // time for other hosts to arrive after the first problem
constexpr std::size_t kMostHostName = 1024;
constexpr const char* kNotCompared = "?";

double facts_clock() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

class Coordinator::Server {
 public:
  Server(CoordinatorOptions options, launch::Fd listener)
      : options_(std::move(options)),
        connections_(
            std::move(listener),
            options_.secret,
            options_.world_size,
            [this](CoordinatorPeer& peer, const Frame& frame) { handle(peer, frame); },
            [this](const std::string& text) { tell(text); }),
        values_(std::move(options_.values), connections_) {}

  void run() {
    deadline_ = now_s() + options_.join_timeout_s;
    while (!ending_) {
      connections_.wait(next_look_);
      obey();
      if (now_s() >= next_look_) {
        next_look_ = now_s() + kTickS;
        const bool all_came = arrived_ == options_.world_size;
        const bool late = now_s() > (all_came ? refuse_at_ : std::min(deadline_, refuse_at_));
        tell_of_slow_hosts();
        if (!ready_ && !refused_ && probing_ == 0 && late) refuse_missing();
        find_silent();
      }
      connections_.flush();
      forget();
    }
  }

  void end() {
    ending_ = true;
    connections_.wake();
  }
  void order(std::function<void()> what) {
    {
      const std::lock_guard lock(mutex_);
      orders_.push_back(std::move(what));
    }
    connections_.wake();
  }
  void stop_hosts(int signal) {
    order([this, signal] {
      broadcast(FrameWriter(FrameType::Stop).number(static_cast<std::int32_t>(signal)));
    });
  }
  void wait_until_left() {
    std::unique_lock lock(mutex_);
    left_.wait(lock, [this] { return gone_ >= options_.world_size || ending_; });
  }
  [[nodiscard]] bool ready() const { return ready_; }
  std::string abort_text() {
    const std::lock_guard lock(mutex_);
    return abort_text_;
  }
  std::vector<int> lost_hosts() {
    const std::lock_guard lock(mutex_);
    return lost_;
  }
  std::map<int, int> exit_codes() {
    const std::lock_guard lock(mutex_);
    return exit_codes_;
  }
  CoordinatorNews news() {
    const std::lock_guard lock(mutex_);
    return news_;
  }
  void settle() {
    // The second order follows what had arrived when the first one was given.
    for (int pass = 0; pass < 2; ++pass) {
      auto done = std::make_shared<std::promise<void>>();
      std::future<void> handled = done->get_future();
      order([done] { done->set_value(); });
      if (handled.wait_for(std::chrono::milliseconds(500)) != std::future_status::ready) return;
    }
  }

 private:
  using Peer = CoordinatorPeer;
  [[nodiscard]] const std::vector<std::unique_ptr<Peer>>& peers() const {
    return connections_.peers();
  }

  void obey() {
    std::vector<std::function<void()>> orders;
    {
      const std::lock_guard lock(mutex_);
      orders.swap(orders_);
    }
    for (const auto& what : orders)
      what();
  }

  void handle(Peer& peer, const Frame& frame) {
    FrameReader body(frame);
    switch (frame.type) {
      case FrameType::Join:
        return join(peer, body);
      case FrameType::Facts:
        return take_facts(peer, body);
      case FrameType::Lines:
        return pass_on(peer, frame);
      case FrameType::Abort: {
        const auto rank = body.number<std::int32_t>();
        const auto kind = body.number<std::uint32_t>();
        return break_world(rank, kind, body.text(), &peer);
      }
      case FrameType::Leave:
        leave(peer);
        return;
      case FrameType::Set: {
        const std::string key = body.text();
        return values_.set(key, body.text());
      }
      case FrameType::Get:
        return values_.get(peer, body.text());
      case FrameType::Probed:
        return probed(peer, body);
      case FrameType::Ended:
        return ended(peer, body);
      case FrameType::Report: {
        HostProblem problem = read_problem(body);
        const std::lock_guard lock(mutex_);
        if (!news_.report) news_.report = std::move(problem);
        return;
      }
      default:
        return;
    }
  }

  void join(Peer& peer, FrameReader& body) {
    Arrival arrival = read_join(body);
    const int host = arrival.host, world = arrival.world;
    peer.facts = std::move(arrival.facts);
    peer.first = peer.facts.first_rank;
    peer.ranks = peer.facts.ranks;
    peer.name = peer.facts.name;
    peer.arrived_at = facts_clock();
    TESSERA_REQUIRE(peer.first >= 0 && peer.ranks >= 1 && peer.ranks <= kMostRanks &&
                        peer.name.size() <= kMostHostName,
                    Comm,
                    "it is no host of this job",
                    "");
    TESSERA_REQUIRE(!ready_ && probing_ == 0, Comm, "all hosts of this job are here already", "");
    peer.host = host;
    if (refused_) {
      connections_.send(peer, refusal_);
      return;
    }
    const Peer* const twin = host_with_ranks_of(peer);
    if (world != options_.world_size) {
      note({Error::Kind::Config,
            fmt::format("host {} was started for {} ranks and the host of rank 0 for {}",
                        peer.name,
                        world,
                        options_.world_size),
            "start all hosts with the same flags"});
    } else if (twin != nullptr) {
      note({Error::Kind::Config,
            fmt::format("hosts {} and {} both have rank {}",
                        twin->name,
                        peer.name,
                        std::max(peer.first, twin->first)),
            "give every host a node rank of its own; the ranks of a host must be contiguous: with "
            "mpirun --map-by slot, with srun --distribution=block"});
    } else {
      hosts_.emplace(peer.first, &peer);
      arrived_ += peer.ranks;
    }
  }

  void take_facts(Peer& peer, FrameReader& body) {
    if (refused_ || !hosts_.contains(peer.first) || hosts_.at(peer.first) != &peer) return;
    TESSERA_REQUIRE(!peer.has_facts && !ready_, Comm, "it told its facts twice", "");
    peer.facts.facts = read_facts(body);
    peer.has_facts = true;
    compared_ += peer.ranks;
    // Hosts that have not arrived yet may have problems too; they get some time to report them.
    const Peer& first = *hosts_.begin()->second;
    if (first.has_facts && !problems_of(peer.facts, first.facts).empty()) wait_for_more();
    if (compared_ == options_.world_size) all_are_here();
  }

  /// Tells now and then which hosts still read what all hosts compare.
  void tell_of_slow_hosts() {
    if (arrived_ < options_.world_size || compared_ == options_.world_size || ready_ || refused_)
      return;
    if (now_s() < told_slow_ + options_.join_timeout_s) return;
    if (std::exchange(told_slow_, now_s()) == 0.0) return;
    std::string names;
    for (const auto& [first, host] : hosts_) {
      if (!host->has_facts) names += (names.empty() ? "" : ", ") + host->name;
    }
    tell(fmt::format("waiting for {}, which reads the files that all hosts compare", names));
  }

  void ended(Peer& peer, FrameReader& body) {
    const auto host = body.number<std::int32_t>();
    const auto code = body.number<std::int32_t>();
    connections_.send(peer, FrameWriter(FrameType::Alive).finish());
    const std::lock_guard lock(mutex_);
    if (host < 0 || host >= options_.world_size) return;
    exit_codes_[host] = code;
    if (!body.done()) news_.told.emplace(host, read_problem(body));
  }

  void wait_for_more() { refuse_at_ = std::min(refuse_at_, now_s() + kMoreProblemsS); }
  void note(HostProblem problem) {
    problems_.push_back(std::move(problem));
    wait_for_more();
  }

  /// Adds a problem for each difference between the hosts that have arrived.
  void compare() {
    const Peer* told = nullptr;  // the first host that has told its facts
    for (const auto& [first, host] : hosts_) {
      if (!host->has_facts) continue;
      if (told == nullptr) told = host;
      for (HostProblem& problem : problems_of(host->facts, told->facts))
        problems_.push_back(std::move(problem));
    }
  }

  /// Lets the hosts try to reach each other if nothing else keeps the job from starting.
  void all_are_here() {
    compare();
    if (!problems_.empty()) return refuse_all();
    std::vector<Peer*> reachable;
    for (const auto& [first, host] : hosts_) {
      if (host->facts.port > 0) reachable.push_back(host);
    }
    const auto count = static_cast<int>(reachable.size());
    if (count < 2) return begin();
    probing_ = count;
    for (int own = 0; own < count; ++own) {
      const std::vector<int> others = hosts_to_reach(own, count);
      FrameWriter frame(FrameType::Probe);
      frame.text(own == 0 ? "" : reachable.front()->facts.mark)
          .number(static_cast<std::uint32_t>(others.size()));
      for (const int other : others) {
        const HostFacts& facts = reachable[static_cast<std::size_t>(other)]->facts;
        frame.text(facts.name).text(facts.address).number(static_cast<std::int32_t>(facts.port));
      }
      connections_.send(*reachable[static_cast<std::size_t>(own)], frame.finish());
    }
  }

  void probed(Peer& peer, FrameReader& body) {
    TESSERA_REQUIRE(probing_ > 0 && peer.is_host() && peer.folder == kNotCompared,
                    Comm,
                    "it sent a report that was not requested",
                    "");
    const auto seen = body.number<std::uint8_t>();
    peer.folder = seen == 0 ? "own" : seen == 1 ? "shared" : "-";
    const HostFacts& first = hosts_.begin()->second->facts;
    const auto closed = std::min<std::uint32_t>(body.number<std::uint32_t>(), kMostProbes);
    for (std::uint32_t i = 0; i < closed; ++i) {
      problems_.push_back(
          {Error::Kind::Comm,
           fmt::format("host {} cannot connect to host {}", peer.name, body.text()),
           "open all ports between the hosts in their firewalls, or choose another network with "
           "GLOO_SOCKET_IFNAME=eth1"});
    }
    if (seen <= 1) {
      if (auto problem = folder_problem(peer.facts, first, /*is_shared=*/seen == 1))
        problems_.push_back(std::move(*problem));
    }
    if (--probing_ > 0) return;
    if (problems_.empty())
      begin();
    else
      refuse_all();
  }

  void begin() {
    ready_ = true;
    show_hosts();
    broadcast(FrameWriter(FrameType::Ready));
  }

  /// The host that has joined with some of the ranks of `peer`; nullptr if there is none.
  [[nodiscard]] const Peer* host_with_ranks_of(const Peer& peer) const {
    auto at = hosts_.lower_bound(peer.first);
    if (at != hosts_.end() && at->first < peer.first + peer.ranks) return at->second;
    if (at == hosts_.begin()) return nullptr;
    --at;
    return at->first + at->second->ranks > peer.first ? at->second : nullptr;
  }

  void forget_ranks(const Peer& peer) {
    const auto found = hosts_.find(peer.first);
    if (found != hosts_.end() && found->second == &peer) hosts_.erase(found);
  }

  /// Shows the table of hosts, and warns of clocks that differ.
  void show_hosts() const {
    std::vector<const Peer*> hosts;
    for (const auto& [first, host] : hosts_)
      hosts.push_back(host);
    std::vector<HostFacts> facts;
    std::vector<double> clocks;
    std::vector<std::string> folders;
    for (const Peer* host : hosts) {
      facts.push_back(host->facts);
      clocks.push_back(host->arrived_at);
      folders.push_back(host->folder == kNotCompared ? "-" : host->folder);
      const double ahead = host->facts.clock_s - host->arrived_at;
      if (std::abs(ahead) > kMostClockS) {
        tell(fmt::format("the clock of host {} differs from that of the coordinator by {:+.1f} s",
                         host->name,
                         ahead));
      }
    }
    if (options_.table) options_.table(host_table(facts, clocks, folders));
  }

  /// Refuses the job because of all problems, and shows the table of the hosts that are here.
  void refuse_all() {
    show_hosts();
    const HostProblem all = joined(problems_);
    refuse(all.kind, all.what, all.fix);
  }

  void refuse(Error::Kind kind, const std::string& what, const std::string& fix) {
    refused_ = true;
    {
      const std::lock_guard lock(mutex_);
      news_.refusal = HostProblem{kind, what, fix};
    }
    const FrameWriter frame = FrameWriter(FrameType::Refuse)
                                  .number(static_cast<std::uint32_t>(kind))
                                  .text(what)
                                  .text(fix);
    refusal_ = frame.finish();
    broadcast(frame);
  }

  void refuse_missing() {
    std::vector<std::pair<int, int>> here;
    for (const auto& [first, host] : hosts_)
      here.emplace_back(first, host->ranks);
    const std::string missing = missing_hosts(options_.hosts, here, options_.world_size);
    compare();
    // Hosts that were started in another way cannot join. Others are missing because of them.
    for (const Mismatch& one : connections_.strangers_of_tessera()) {
      if (!missing.empty()) problems_.push_back({Error::Kind::Config, one.what, one.fix});
    }
    const bool explained = !connections_.strangers_of_tessera().empty();
    if (!missing.empty() && !explained && (problems_.empty() || now_s() >= deadline_)) {
      problems_.push_back(
          {Error::Kind::Comm,
           fmt::format("{} did not arrive within {} s", missing, options_.join_timeout_s),
           "start all hosts; see whether they can reach this one, and whether ssh "
           "answers: ssh HOST hostname"});
    }
    if (problems_.empty()) {
      refuse_at_ = std::numeric_limits<double>::infinity();
      return;
    }
    refuse_all();
  }

  void pass_on(const Peer& from, const Frame& frame) {
    std::string whole(sizeof(std::uint32_t), '\0');
    const auto length = static_cast<std::uint32_t>(frame.body.size() + 1);
    std::memcpy(whole.data(), &length, sizeof(length));
    whole += static_cast<char>(frame.type);
    whole += frame.body;
    for (const auto& peer : peers()) {
      if (peer.get() != &from && peer->is_host()) connections_.send(*peer, whole);
    }
  }

  void broadcast(const FrameWriter& frame) {
    const std::string whole = frame.finish();
    for (const auto& peer : peers()) {
      if (peer->is_host()) connections_.send(*peer, whole);
    }
  }

  void break_world(int rank, std::uint32_t kind, const std::string& text, const Peer* from) {
    {
      const std::lock_guard lock(mutex_);
      if (!abort_text_.empty()) return;  // the first failure counts
      abort_text_ = text;
      constexpr auto kLast = static_cast<std::uint32_t>(Error::Kind::Bug);
      news_.broken =
          problem_of(launch::split_remedy(static_cast<Error::Kind>(std::min(kind, kLast)), text));
    }
    const std::string whole = FrameWriter(FrameType::Abort)
                                  .number(static_cast<std::int32_t>(rank))
                                  .number(kind)
                                  .text(text)
                                  .finish();
    for (const auto& peer : peers()) {
      if (peer.get() != from && peer->is_host()) connections_.send(*peer, whole);
    }
  }

  void leave(Peer& peer) {
    if (!peer.is_host() || std::exchange(peer.has_left, true)) return;
    const std::lock_guard lock(mutex_);
    gone_ += peer.ranks;
    left_.notify_all();
  }

  void lose(Peer& peer, const std::string& how) {
    if (!peer.is_host() || peer.has_left) return;
    leave(peer);
    // A host that was refused ends its connection itself.
    if (ready_ || !refused_) {
      const std::lock_guard lock(mutex_);
      lost_.push_back(peer.host);
    }
    if (!ready_) {
      if (!refused_)
        refuse(Error::Kind::Comm,
               fmt::format("host {} (ranks {} to {}) {} while the hosts met",
                           peer.name,
                           peer.first,
                           peer.first + peer.ranks - 1,
                           how),
               "see its message");
      return;
    }
    break_world(peer.first,
                static_cast<std::uint32_t>(Error::Kind::Comm),
                fmt::format("host {} was lost (ranks {} to {}): {}; see whether it runs and can be "
                            "reached, then start the job again",
                            peer.name,
                            peer.first,
                            peer.first + peer.ranks - 1,
                            how),
                &peer);
  }

  void find_silent() {
    const double now = now_s();
    if (now > told_alive_ + kAliveS) {
      told_alive_ = now;
      broadcast(FrameWriter(FrameType::Alive));
    }
    connections_.look(now);
    for (const auto& peer : peers()) {
      // A slow disk may keep a host that reads the files that all compare.
      const double patience = peer->has_facts
                                  ? options_.silence_s
                                  : std::max(options_.silence_s, options_.join_timeout_s);
      if (peer->is_host() && !peer->has_left && now > peer->heard + patience) {
        lose(*peer, fmt::format("it has sent nothing for {} s", patience));
        peer->closed = true;
      }
    }
  }

  void forget() {
    connections_.forget([this](Peer& peer) {
      lose(peer, "its connection was closed");
      values_.forget(peer);
      forget_ranks(peer);
    });
  }

  void tell(const std::string& text) const {
    if (options_.notice) options_.notice(text);
  }

  CoordinatorOptions options_;
  CoordinatorConnections connections_;
  std::map<int, Peer*> hosts_;  // those that have joined, by their first rank
  std::vector<HostProblem> problems_;
  double deadline_ = 0.0;
  double refuse_at_ = std::numeric_limits<double>::infinity();  // earlier if there are problems
  int probing_ = 0;  // hosts that have not yet answered whom they reach
  CoordinatorStore values_;
  std::string refusal_;
  double told_alive_ = 0.0, next_look_ = 0.0;
  int arrived_ = 0, compared_ = 0;  // ranks whose hosts have joined, and have told their facts
  double told_slow_ = 0.0;
  std::atomic<bool> ready_{false};
  bool refused_ = false;
  std::atomic<bool> ending_{false};

  std::mutex mutex_;  // for all members below
  std::condition_variable left_;
  std::vector<std::function<void()>> orders_;
  std::string abort_text_;
  int gone_ = 0;  // ranks whose hosts have left
  std::vector<int> lost_;
  std::map<int, int> exit_codes_;
  CoordinatorNews news_;
};

Coordinator::Coordinator(CoordinatorOptions options) {
  std::string why;
  launch::Fd listener;
  for (int at = 0; at < std::max(1, options.ports) && listener.get() < 0; ++at)
    listener = listen_on(options.address, options.port == 0 ? 0 : options.port + at, why);
  TESSERA_REQUIRE(listener.get() >= 0,
                  Environment,
                  fmt::format("cannot listen on {}, ports {} to {}: {}",
                              options.address,
                              options.port,
                              options.port + std::max(1, options.ports) - 1,
                              why),
                  "--master_addr must be an address of the host of rank 0; choose another "
                  "--master_port");
  port_ = port_of(listener.get());
  server_ = std::make_unique<Server>(std::move(options), std::move(listener));
}

Coordinator::~Coordinator() {
  server_->end();
  if (thread_.joinable()) thread_.join();
}

void Coordinator::start() {
  thread_ = quiet_thread([this] { server_->run(); });
}

void Coordinator::stop_hosts(int signal) {
  server_->stop_hosts(signal);
}
bool Coordinator::ready() const {
  return server_->ready();
}
void Coordinator::wait_until_left() {
  server_->wait_until_left();
}
std::vector<int> Coordinator::lost_hosts() const {
  return server_->lost_hosts();
}
std::string Coordinator::abort_text() const {
  return server_->abort_text();
}
std::map<int, int> Coordinator::exit_codes() const {
  return server_->exit_codes();
}
CoordinatorNews Coordinator::news() const {
  return server_->news();
}
void Coordinator::settle() {
  server_->settle();
}

}  // namespace tessera::hosts
