// SPDX-License-Identifier: Apache-2.0
#include "tessera/hosts/coordinator_protocol.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <iterator>
#include <memory>
#include <set>

#include <fmt/core.h>

#include "tessera/base/clock.h"
#include "tessera/base/error.h"
#include "tessera/hosts/coordinator_client.h"
#include "tessera/hosts/host_check.h"
#include "tessera/hosts/job_end.h"
#include "tessera/launch/rank_end.h"

namespace tessera::hosts {
namespace {

constexpr double kProtocolTickS = 0.25;
constexpr double kAliveS = 1.0;         // interval between Alive frames
constexpr double kMostClockS = 2.0;     // largest difference of clocks without a warning
constexpr double kMoreProblemsS = 2.0;  // time for other hosts to arrive after the first problem
constexpr std::size_t kMostHostName = 1024;
constexpr const char* kNotCompared = "?";

}  // namespace

ProtocolClock clocks_of_this_host() {
  return {[] { return now_s(); },
          [] {
            const auto since = std::chrono::system_clock::now().time_since_epoch();
            return std::chrono::duration<double>(since).count();
          }};
}

CoordinatorProtocol::CoordinatorProtocol(CoordinatorOptions options,
                                         CoordinatorLinks& links,
                                         ProtocolClock clock)
    : options_(std::move(options)),
      links_(links),
      clock_(std::move(clock)),
      values_(std::move(options_.values), links),
      lines_(options_.world_size) {}

void CoordinatorProtocol::begin() {
  deadline_ = clock_.now() + options_.join_timeout_s;
}

double CoordinatorProtocol::look() {
  const double now = clock_.now();
  if (now >= next_look_) {
    next_look_ = now + kProtocolTickS;
    const bool all_came = arrived_ == options_.world_size;
    const bool late = now > (all_came ? refuse_at_ : std::min(deadline_, refuse_at_));
    tell_of_slow_hosts();
    if (!ready_ && !refused_ && probing_ == 0 && late) refuse_missing();
    find_silent();
  }
  if (now >= next_lines_) {
    next_lines_ = now + lines_interval_s(static_cast<int>(hosts_.size()));
    if (ready_) lines_.share(hosts_, links_);
  }
  return std::min(next_look_, next_lines_);
}

void CoordinatorProtocol::stop_hosts(int signal) {
  broadcast(FrameWriter(FrameType::Stop).number(static_cast<std::int32_t>(signal)));
}

void CoordinatorProtocol::wait_until_left() {
  std::unique_lock lock(mutex_);
  left_.wait(lock, [this] { return gone_ >= options_.world_size || ended_; });
}

void CoordinatorProtocol::end() {
  const std::lock_guard lock(mutex_);
  ended_ = true;
  left_.notify_all();
}

bool CoordinatorProtocol::all_left() const {
  const std::lock_guard lock(mutex_);
  return gone_ >= options_.world_size;
}

std::string CoordinatorProtocol::abort_text() const {
  const std::lock_guard lock(mutex_);
  return abort_text_;
}

std::vector<int> CoordinatorProtocol::lost_hosts() const {
  const std::lock_guard lock(mutex_);
  return lost_;
}

std::map<int, int> CoordinatorProtocol::exit_codes() const {
  const std::lock_guard lock(mutex_);
  return exit_codes_;
}

CoordinatorNews CoordinatorProtocol::news() const {
  const std::lock_guard lock(mutex_);
  return news_;
}

void CoordinatorProtocol::handle(Peer& peer, const Frame& frame) {
  FrameReader body(frame);
  switch (frame.type) {
    case FrameType::Join:
      return join(peer, body);
    case FrameType::Facts:
      return take_facts(peer, body);
    case FrameType::Lines:
      return lines_.take(peer, frame);
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

void CoordinatorProtocol::join(Peer& peer, FrameReader& body) {
  Arrival arrival = read_join(body);
  const int host = arrival.host, world = arrival.world;
  peer.facts = std::move(arrival.facts);
  peer.first = peer.facts.first_rank;
  peer.ranks = peer.facts.ranks;
  peer.name = peer.facts.name;
  peer.arrived_at = clock_.wall();
  TESSERA_REQUIRE(peer.first >= 0 && peer.ranks >= 1 && peer.ranks <= kMostRanks &&
                      peer.name.size() <= kMostHostName,
                  Comm,
                  "it is not a host of this job",
                  "");
  TESSERA_REQUIRE(!ready_ && probing_ == 0, Comm, "all hosts of this job are here already", "");
  peer.host = host;
  if (refused_) {
    links_.send(peer, refusal_);
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
  } else if (peer.first > world - peer.ranks) {
    note({Error::Kind::Config,
          fmt::format("host {} has the ranks {} to {} of a job of {} ranks",
                      peer.name,
                      peer.first,
                      std::int64_t{peer.first} + peer.ranks - 1,
                      world),
          "give every host a node rank of its own, from 0 to the number of hosts - 1"});
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

void CoordinatorProtocol::take_facts(Peer& peer, FrameReader& body) {
  if (refused_ || !hosts_.contains(peer.first) || hosts_.at(peer.first) != &peer) return;
  TESSERA_REQUIRE(!peer.has_facts && !ready_, Comm, "it sent its facts twice", "");
  peer.facts.facts = read_facts(body);
  peer.has_facts = true;
  compared_ += peer.ranks;
  // Hosts that have not arrived yet may have problems too; they get some time to report them.
  const Peer& first = *hosts_.begin()->second;
  if (first.has_facts && !problems_of(peer.facts, first.facts).empty()) wait_for_more();
  if (compared_ == options_.world_size) all_are_here();
}

/// Tells now and then which hosts still read what all hosts compare.
void CoordinatorProtocol::tell_of_slow_hosts() {
  if (arrived_ < options_.world_size || compared_ == options_.world_size || ready_ || refused_)
    return;
  if (clock_.now() < told_slow_ + options_.join_timeout_s) return;
  if (std::exchange(told_slow_, clock_.now()) == 0.0) return;
  std::string names;
  for (const auto& [first, host] : hosts_) {
    if (!host->has_facts) names += (names.empty() ? "" : ", ") + host->name;
  }
  tell(fmt::format("waiting for {}, which reads the files that all hosts compare", names));
}

void CoordinatorProtocol::ended(Peer& peer, FrameReader& body) {
  const auto host = body.number<std::int32_t>();
  const auto code = body.number<std::int32_t>();
  links_.send(peer, FrameWriter(FrameType::Alive).finish());
  const std::lock_guard lock(mutex_);
  if (host < 0 || host >= options_.world_size) return;
  exit_codes_[host] = code;
  if (!body.done()) news_.told.emplace(host, read_problem(body));
}

void CoordinatorProtocol::wait_for_more() {
  refuse_at_ = std::min(refuse_at_, clock_.now() + kMoreProblemsS);
}
void CoordinatorProtocol::note(HostProblem problem) {
  problems_.push_back(std::move(problem));
  wait_for_more();
}

/// Adds a problem for each difference between the hosts that have arrived.
void CoordinatorProtocol::compare() {
  const Peer* told = nullptr;  // the first host that has sent its facts
  for (const auto& [first, host] : hosts_) {
    if (!host->has_facts) continue;
    if (told == nullptr) told = host;
    for (HostProblem& problem : problems_of(host->facts, told->facts))
      problems_.push_back(std::move(problem));
  }
}

/// Lets the hosts try to reach each other if nothing else keeps the job from starting.
void CoordinatorProtocol::all_are_here() {
  compare();
  if (!problems_.empty()) return refuse_all();
  std::vector<Peer*> reachable;
  for (const auto& [first, host] : hosts_) {
    if (host->facts.port > 0) reachable.push_back(host);
  }
  const auto count = static_cast<int>(reachable.size());
  if (count < 2) return all_ready();
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
    links_.send(*reachable[static_cast<std::size_t>(own)], frame.finish());
  }
}

void CoordinatorProtocol::probed(Peer& peer, FrameReader& body) {
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
    all_ready();
  else
    refuse_all();
}

void CoordinatorProtocol::all_ready() {
  ready_ = true;
  show_hosts();
  broadcast(FrameWriter(FrameType::Ready));
}

/// The host that has joined with some of the ranks of `peer`; nullptr if there is none.
const CoordinatorPeer* CoordinatorProtocol::host_with_ranks_of(const Peer& peer) const {
  auto at = hosts_.lower_bound(peer.first);
  if (at != hosts_.end() && at->first < peer.first + peer.ranks) return at->second;
  if (at == hosts_.begin()) return nullptr;
  --at;
  return at->first + at->second->ranks > peer.first ? at->second : nullptr;
}

void CoordinatorProtocol::forget_ranks(const Peer& peer) {
  const auto found = hosts_.find(peer.first);
  if (found != hosts_.end() && found->second == &peer) hosts_.erase(found);
}

/// Shows the table of hosts, and warns of clocks that differ.
void CoordinatorProtocol::show_hosts() const {
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
void CoordinatorProtocol::refuse_all() {
  show_hosts();
  const HostProblem all = joined(problems_);
  refuse(all.kind, all.what, all.fix);
}

void CoordinatorProtocol::refuse(Error::Kind kind,
                                 const std::string& what,
                                 const std::string& fix) {
  refused_ = true;
  {
    const std::lock_guard lock(mutex_);
    news_.refusal = HostProblem{kind, what, fix};
  }
  const FrameWriter frame =
      FrameWriter(FrameType::Refuse).number(static_cast<std::uint32_t>(kind)).text(what).text(fix);
  refusal_ = frame.finish();
  broadcast(frame);
}

void CoordinatorProtocol::refuse_missing() {
  std::vector<std::pair<int, int>> here;
  for (const auto& [first, host] : hosts_)
    here.emplace_back(first, host->ranks);
  const std::string missing = missing_hosts(options_.hosts, here, options_.world_size);
  compare();
  // Hosts that were started in another way cannot join. Others are missing because of them.
  for (const Mismatch& one : links_.strangers_of_tessera()) {
    if (!missing.empty()) problems_.push_back({Error::Kind::Config, one.what, one.fix});
  }
  const bool explained = !links_.strangers_of_tessera().empty();
  if (!missing.empty() && !explained && (problems_.empty() || clock_.now() >= deadline_)) {
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

void CoordinatorProtocol::broadcast(const FrameWriter& frame) {
  const std::string whole = frame.finish();
  for (const auto& peer : links_.peers()) {
    if (peer->is_host()) links_.send(*peer, whole);
  }
}

void CoordinatorProtocol::break_world(int rank,
                                      std::uint32_t kind,
                                      const std::string& text,
                                      const Peer* from) {
  {
    const std::lock_guard lock(mutex_);
    if (!abort_text_.empty()) return;  // the first failure counts
    abort_text_ = text;
    constexpr auto kLast = static_cast<std::uint32_t>(Error::Kind::Bug);
    news_.broken =
        problem_of(launch::split_remedy(static_cast<Error::Kind>(std::min(kind, kLast)), text));
  }
  // The hosts that report the end of the job show where all ranks were.
  if (hosts_.size() > launch::kHostsThatHearAll) {
    auto of_rank = hosts_.upper_bound(rank);
    std::set<Peer*> reporters = {hosts_.begin()->second};
    if (of_rank != hosts_.begin()) reporters.insert(std::prev(of_rank)->second);
    for (Peer* const reporter : reporters)
      lines_.send_all(*reporter, links_);
  } else {
    lines_.share(hosts_, links_);
  }
  const std::string whole = FrameWriter(FrameType::Abort)
                                .number(static_cast<std::int32_t>(rank))
                                .number(kind)
                                .text(text)
                                .finish();
  for (const auto& peer : links_.peers()) {
    if (peer.get() != from && peer->is_host()) links_.send(*peer, whole);
  }
}

void CoordinatorProtocol::leave(Peer& peer) {
  if (!peer.is_host() || std::exchange(peer.has_left, true)) return;
  const std::lock_guard lock(mutex_);
  gone_ += peer.ranks;
  left_.notify_all();
}

void CoordinatorProtocol::lose(Peer& peer, const std::string& how) {
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

void CoordinatorProtocol::find_silent() {
  const double now = clock_.now();
  if (now > told_alive_ + kAliveS) {
    told_alive_ = now;
    broadcast(FrameWriter(FrameType::Alive));
  }
  for (const auto& peer : links_.peers()) {
    // A slow disk may keep a host that reads the files that all compare.
    const double patience = peer->has_facts ? options_.silence_s
                                            : std::max(options_.silence_s, options_.join_timeout_s);
    if (peer->is_host() && !peer->has_left && now > peer->heard + patience) {
      lose(*peer, fmt::format("it has sent nothing for {} s", patience));
      links_.close(*peer);
    }
  }
}

void CoordinatorProtocol::gone(Peer& peer) {
  lose(peer, "its connection was closed");
  values_.forget(peer);
  const auto found = hosts_.find(peer.first);
  if (found != hosts_.end() && found->second == &peer) lines_.forget(peer);
  forget_ranks(peer);
}

void CoordinatorProtocol::tell(const std::string& text) const {
  if (options_.notice) options_.notice(text);
}

}  // namespace tessera::hosts
