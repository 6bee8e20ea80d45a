// SPDX-License-Identifier: Apache-2.0
#include "tessera/hosts/simulated_hosts.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <csignal>
#include <utility>

#include <fmt/core.h>

#include "tessera/base/control_page.h"
#include "tessera/base/error.h"
#include "tessera/base/philox.h"
#include "tessera/hosts/host_protocol.h"
#include "tessera/hosts/rank_lines.h"
#include "tessera/launch/rank_end.h"

namespace tessera::hosts {
namespace {

constexpr double kStepS = 0.1;     // from a signal to the end of the ranks
constexpr double kLookS = 0.05;    // of the process that started the hosts
constexpr double kReachS = 0.4;    // of an attempt to reach a host
constexpr int kHandshakeLegs = 5;  // SYN, SYN and ACK, greeting, proof, answer

}  // namespace

// Members of a class with a name have types with names.
namespace simulated {

/// The delays of one direction of a connection.
class Direction {
 public:
  /// Returns when a message that is ready at `time` arrives.
  double arrival(double time, const SimulatedNetwork& network, std::uint64_t& draws) {
    double delay = network.latency_s + network.jitter_s * draw(network, draws);
    double again = network.retransmit_s;
    while (draw(network, draws) < network.loss) {
      delay += again;
      again *= 2;
    }
    last_ = std::max({last_, time + delay, blocked_until_});
    return last_;
  }
  void block_until(double time) { blocked_until_ = std::max(blocked_until_, time); }

 private:
  static double draw(const SimulatedNetwork& network, std::uint64_t& draws) {
    return static_cast<double>(mix64(network.seed, ++draws) >> 11) * 0x1p-53;
  }
  double last_ = 0.0, blocked_until_ = 0.0;
};

/// A control page that has the lines of the host's own ranks, and those that it was sent.
class SimulatedPage final : public HostPage {
 public:
  /// `broken`: counts the pages whose world is broken.
  SimulatedPage(int first, int ranks, int& broken)
      : first_(first),
        own_(std::make_unique<RankLine[]>(static_cast<std::size_t>(ranks))),
        num_broken_(broken) {}

  RankLine& own(int rank) { return own_[static_cast<std::size_t>(rank - first_)]; }
  [[nodiscard]] const std::map<int, std::string>& others() const { return others_; }
  [[nodiscard]] int signal() const { return signal_; }

  [[nodiscard]] std::string line(int rank) override { return line_bytes(rank, own(rank)); }
  void take_line(int rank, std::string_view bytes) override { others_[rank] = bytes; }
  [[nodiscard]] std::optional<BrokenWorld> broken() override { return broken_; }
  void break_world(const BrokenWorld& how) override {
    if (broken_) return;
    broken_ = how;
    ++num_broken_;
  }
  void stop(int signal) override { signal_ = signal; }

 private:
  int first_;
  std::unique_ptr<RankLine[]> own_;
  int& num_broken_;
  std::map<int, std::string> others_;
  std::optional<BrokenWorld> broken_;
  int signal_ = 0;
};

struct Peer : CoordinatorPeer {
  int agent = 0;
  FrameBuffer in;
};

}  // namespace simulated

/// The coordinator, the agents and the network between them.
class SimulatedHosts::World final : public CoordinatorLinks {
 public:
  World(const SimulatedJob& job,
        const SimulatedNetwork& network,
        Timeline& timeline,
        const std::set<int>& dead)
      : job_(job),
        network_(network),
        timeline_(timeline),
        protocol_(options_of(job),
                  *this,
                  {[this] { return timeline_.now(); }, [this] { return timeline_.now(); }}) {
    protocol_.begin();
    for (int i = 0; i < job.hosts; ++i) {
      agents_.push_back(std::make_unique<Agent>(*this, i));
      if (dead.contains(i)) {
        agents_.back()->lost = true;
        continue;
      }
      const double start = job.start_spread_s * random();
      later(timeline_.now() + start, [this, i] { connect(i); });
    }
    look();
  }

  CoordinatorProtocol& protocol() { return protocol_; }

  // CoordinatorLinks
  void send(CoordinatorPeer& peer, std::string_view bytes) override {
    auto& to = static_cast<simulated::Peer&>(peer);
    Agent& agent = *agents_[static_cast<std::size_t>(to.agent)];
    const double ready = out_of_head(bytes.size());
    ++agent.traffic.received;
    agent.traffic.received_bytes += static_cast<std::int64_t>(bytes.size());
    later(agent.to_host.arrival(ready, network_, draws_),
          [this, &agent, text = std::string(bytes)] { arrive(agent, text); });
  }
  void close(CoordinatorPeer& peer) override { peer.closed = any_closed_ = true; }
  [[nodiscard]] const std::vector<std::unique_ptr<CoordinatorPeer>>& peers() const override {
    return peers_;
  }
  [[nodiscard]] const std::vector<Mismatch>& strangers_of_tessera() const override {
    return strangers_;
  }

  /// A host: its page, its connection, and the coroutine of its protocol.
  struct Agent final : HostLink {
    Agent(World& of, int index)
        : world(of),
          part(of.part_of(index)),
          page(part.first_rank, part.local_ranks, of.num_broken_),
          protocol(part, *this) {}

    bool send(const FrameWriter& frame) override {
      if (is_closed) return false;
      world.send_to_head(*this, frame.finish());
      return true;
    }
    [[nodiscard]] bool closed() const override { return is_closed; }
    [[nodiscard]] double now() const override { return world.timeline_.now(); }
    bool receive_now(double deadline, std::optional<Frame>& frame) override {
      frame = in.next();
      return frame || is_closed || deadline <= now();
    }
    void resume_later(std::coroutine_handle<> handle,
                      double deadline,
                      std::optional<Frame>& frame) override {
      waiting = handle;
      into = &frame;
      const std::uint64_t number = ++waits;
      world.later(deadline, [this, number] {
        if (waiting && number == waits) wake();
      });
    }
    /// Lets the coroutine go on, with a frame if one has arrived.
    void wake() {
      *into = in.next();
      std::exchange(waiting, nullptr).resume();
      world.go_on(*this);
    }

    World& world;
    const HostPart part;
    simulated::SimulatedPage page;
    HostProtocol protocol;
    FrameBuffer in;
    simulated::Direction to_host, to_head;
    simulated::Peer* peer = nullptr;
    bool is_closed = false, lost = false, follows = false, left = false;
    std::string refused;
    HostTraffic traffic;
    std::coroutine_handle<> waiting;
    std::optional<Frame>* into = nullptr;
    std::uint64_t waits = 0;
    std::atomic<bool> ending{false};
    HostFacts facts;
    Routine routine;  // last: it refers to everything above
  };

  Agent& agent(int host) { return *agents_.at(static_cast<std::size_t>(host)); }
  [[nodiscard]] const std::vector<std::unique_ptr<Agent>>& agents() const { return agents_; }

  void lose(Agent& agent, bool ends_connection) {
    if (std::exchange(agent.lost, true)) return;
    if (agent.follows) --num_ready_;
    if (agent.page.broken()) --num_broken_;
    agent.waiting = nullptr;
    agent.is_closed = true;
    if (!ends_connection || agent.peer == nullptr) return;
    later(agent.to_head.arrival(timeline_.now(), network_, draws_), [this, &agent] {
      if (agent.peer != nullptr) close(*agent.peer);
      forget();
    });
  }
  void cut_off(Agent& agent, double seconds) {
    agent.to_head.block_until(timeline_.now() + seconds);
    agent.to_host.block_until(timeline_.now() + seconds);
  }
  void leave(Agent& agent) {
    agent.ending = true;
    if (agent.lost || std::exchange(agent.left, true)) return;
    agent.protocol.leave(std::nullopt);
  }
  [[nodiscard]] int num_ready() const { return num_ready_; }
  [[nodiscard]] int num_broken() const { return num_broken_; }
  /// Sends what the coordinator itself has begun.
  void settle() { forget(); }

 private:
  static CoordinatorOptions options_of(const SimulatedJob& job) {
    CoordinatorOptions out;
    out.world_size = job.hosts * job.ranks_of_host;
    out.join_timeout_s = job.join_timeout_s;
    out.silence_s = job.silence_s;
    for (int i = 0; i < job.hosts; ++i)
      out.hosts.emplace_back(fmt::format("node-{}", i), job.ranks_of_host);
    return out;
  }
  [[nodiscard]] HostPart part_of(int index) const {
    HostPart out;
    out.host = index;
    out.hosts = job_.hosts;
    out.first_rank = index * job_.ranks_of_host;
    out.local_ranks = job_.ranks_of_host;
    out.world_size = job_.hosts * job_.ranks_of_host;
    out.name = fmt::format("node-{}", index);
    out.master = "node-0";
    return out;
  }
  double random() { return static_cast<double>(mix64(network_.seed, ++draws_) >> 11) * 0x1p-53; }

  /// Something of this start of the job; nothing happens once the start is gone.
  void later(double time, std::function<void()> what) {
    timeline_.at(time, [alive = std::weak_ptr<bool>(alive_), what = std::move(what)] {
      if (!alive.expired()) what();
    });
  }

  double out_of_head(std::size_t bytes) {
    head_out_ = std::max(head_out_, timeline_.now()) + network_.message_s +
                static_cast<double>(bytes) / network_.bytes_per_s;
    return head_out_;
  }

  void connect(int index) {
    Agent& agent = this->agent(index);
    if (agent.lost) return;
    double at = timeline_.now();
    for (int leg = 0; leg < kHandshakeLegs; ++leg)
      at = (leg % 2 == 0 ? agent.to_head : agent.to_host).arrival(at, network_, draws_);
    later(at, [this, &agent] {
      if (agent.lost) return;
      auto peer = std::make_unique<simulated::Peer>();
      peer->agent = agent.part.host;
      peer->from = agent.part.name;
      peer->heard = timeline_.now();
      agent.peer = peer.get();
      peers_.push_back(std::move(peer));
      HostFacts& facts = agent.facts;
      facts.name = agent.part.name;
      facts.version = facts.build = "simulated";
      facts.clock_s = timeline_.now();
      facts.address = agent.part.name;
      facts.port = 1;
      agent.routine = agent.protocol.join(
          facts,
          [](const std::function<void()>&) {
            return std::vector<Fact>{{Fact::Kind::Setting, "optimizer.params.lr", "", "1"}};
          },
          [this](const std::string&, const std::vector<HostAddress>& hosts) {
            return probe(hosts);
          });
      go_on(agent);
    });
  }

  [[nodiscard]] ProbeAnswer probe(const std::vector<HostAddress>& hosts) const {
    ProbeAnswer out;
    for (const HostAddress& host : hosts) {
      const auto index = static_cast<std::size_t>(std::stoi(host.host.substr(5)));
      if (agents_.at(index)->lost) out.closed.push_back(host.host + ": no answer within 4 s");
    }
    return out;
  }

  /// After the coroutine of an agent has run.
  void go_on(Agent& agent) {
    if (!agent.routine.done() || agent.lost) return;
    try {
      agent.routine.get();
    } catch (const Error& error) {
      agent.refused = error.what();
      lose(agent, /*ends_connection=*/true);
      return;
    }
    if (std::exchange(agent.follows, true)) return;
    ++num_ready_;
    agent.routine = agent.protocol.follow(agent.page, agent.ending);
  }

  void arrive(Agent& agent, const std::string& bytes) {
    if (agent.lost) return;
    agent.in.append(bytes.data(), bytes.size());
    if (agent.waiting) agent.wake();
    if (agent.page.signal() != 0 && !agent.ending.exchange(true)) {
      later(timeline_.now() + kStepS, [this, &agent] { leave(agent); });
    }
  }

  void send_to_head(Agent& agent, std::string bytes) {
    ++agent.traffic.sent;
    agent.traffic.sent_bytes += static_cast<std::int64_t>(bytes.size());
    later(agent.to_head.arrival(timeline_.now(), network_, draws_),
          [this, &agent, text = std::move(bytes)]() mutable {
            // The coordinator's host takes one message after the other.
            head_in_ = std::max(head_in_, timeline_.now()) + network_.message_s +
                       static_cast<double>(text.size()) / network_.bytes_per_s;
            later(head_in_, [this, &agent, whole = std::move(text)] { take(agent, whole); });
          });
  }

  void take(Agent& agent, const std::string& bytes) {
    simulated::Peer* const peer = agent.peer;
    if (peer == nullptr || peer->closed) return;
    peer->heard = timeline_.now();
    try {
      peer->in.append(bytes.data(), bytes.size());
      while (const std::optional<Frame> frame = peer->in.next())
        protocol_.handle(*peer, *frame);
    } catch (const Error&) {
      close(*peer);
    }
    forget();
  }

  void look() {
    const double next = protocol_.look();
    forget();
    later(next, [this] { look(); });
  }

  void forget() {
    while (std::exchange(any_closed_, false)) {
      std::vector<std::unique_ptr<CoordinatorPeer>> ended;
      for (auto& peer : peers_) {
        if (peer->closed) ended.push_back(std::move(peer));
      }
      std::erase(peers_, nullptr);
      for (const auto& peer : ended) {
        protocol_.gone(*peer);
        Agent& agent = this->agent(static_cast<const simulated::Peer&>(*peer).agent);
        agent.peer = nullptr;
        later(agent.to_host.arrival(timeline_.now(), network_, draws_), [&agent] {
          if (agent.lost) return;
          agent.is_closed = true;
          if (agent.waiting) agent.wake();
        });
      }
    }
  }

  const SimulatedJob job_;
  const SimulatedNetwork network_;
  Timeline& timeline_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::uint64_t draws_ = 0;
  double head_in_ = 0.0, head_out_ = 0.0;  // when the coordinator's host has time again
  bool any_closed_ = false;
  int num_ready_ = 0, num_broken_ = 0;
  std::vector<std::unique_ptr<CoordinatorPeer>> peers_;
  std::vector<Mismatch> strangers_;
  CoordinatorProtocol protocol_;
  std::vector<std::unique_ptr<Agent>> agents_;
};

void Timeline::at(double time, std::function<void()> what) {
  events_.push({std::max(time, now_), ++number_, std::move(what)});
}

bool Timeline::run_until(double limit, const std::function<bool()>& done) {
  while (!events_.empty() && events_.top().time <= limit) {
    if (done && done()) return true;
    // The order of the queue does not depend on what is moved.
    const std::function<void()> what = std::move(const_cast<Event&>(events_.top()).what);
    now_ = events_.top().time;
    events_.pop();
    what();
  }
  if (done && done()) return true;
  now_ = std::max(now_, limit);
  return false;
}

SimulatedHosts::SimulatedHosts(const SimulatedJob& job,
                               const SimulatedNetwork& network,
                               Timeline& timeline,
                               const std::set<int>& dead)
    : world_(std::make_unique<World>(job, network, timeline, dead)) {}

SimulatedHosts::~SimulatedHosts() = default;

const CoordinatorProtocol& SimulatedHosts::coordinator() const {
  return world_->protocol();
}

void SimulatedHosts::stop_hosts(int signal) {
  world_->protocol().stop_hosts(signal);
  world_->settle();
}

int SimulatedHosts::num_ready() const {
  return world_->num_ready();
}

int SimulatedHosts::num_broken() const {
  return world_->num_broken();
}

bool SimulatedHosts::is_lost(int host) const {
  return world_->agent(host).lost;
}

std::string SimulatedHosts::end_of(int host) const {
  World::Agent& agent = world_->agent(host);
  const std::optional<BrokenWorld> broken = agent.page.broken();
  return broken ? broken->text : agent.refused;
}

void SimulatedHosts::lose(int host, bool ends_connection) {
  world_->lose(world_->agent(host), ends_connection);
}

void SimulatedHosts::cut_off(int host, double seconds) {
  world_->cut_off(world_->agent(host), seconds);
}

void SimulatedHosts::leave(int host) {
  world_->leave(world_->agent(host));
}

void SimulatedHosts::set_line(int rank, std::int64_t step, int waits_for) {
  for (const auto& agent : world_->agents()) {
    const int first = agent->part.first_rank;
    if (rank < first || rank >= first + agent->part.local_ranks) continue;
    RankLine& line = agent->page.own(rank);
    line.pid = 1;
    line.state = static_cast<std::uint32_t>(RankState::Running);
    line.step = step;
    line.waiting_for = static_cast<std::uint32_t>(waits_for + 1);
    return;
  }
}

std::optional<std::int64_t> SimulatedHosts::seen_step(int host, int rank) const {
  const auto& others = world_->agent(host).page.others();
  const auto found = others.find(rank);
  if (found == others.end()) return std::nullopt;
  RankLine line;
  write_line(found->second, line);
  return line.step.load();
}

std::size_t SimulatedHosts::num_seen(int host) const {
  return world_->agent(host).page.others().size();
}

HostTraffic SimulatedHosts::traffic(int host) const {
  return world_->agent(host).traffic;
}

HostTraffic SimulatedHosts::largest_traffic() const {
  HostTraffic out;
  for (const auto& agent : world_->agents()) {
    out.sent = std::max(out.sent, agent->traffic.sent);
    out.received = std::max(out.received, agent->traffic.received);
    out.sent_bytes = std::max(out.sent_bytes, agent->traffic.sent_bytes);
    out.received_bytes = std::max(out.received_bytes, agent->traffic.received_bytes);
  }
  return out;
}

void SimulatedElasticWorld::lose(const std::string& host, double from, double until) {
  outages_[host].push_back({from, until});
}

bool SimulatedElasticWorld::has_power(const std::string& host) const {
  const auto found = outages_.find(host);
  return found == outages_.end() ||
         std::ranges::none_of(found->second, [this](const Outage& outage) {
           return timeline_.now() >= outage.from && timeline_.now() < outage.until;
         });
}

void SimulatedElasticWorld::try_to_reach(const std::string& host) {
  attempts_[host] = timeline_.now() + kReachS;
}

std::optional<bool> SimulatedElasticWorld::reached(const std::string& host) {
  if (timeline_.now() < attempts_[host]) return std::nullopt;
  return has_power(host);
}

HostsEnd SimulatedElasticWorld::run(const RemoteOptions& options) {
  SimulatedJob job;
  job.hosts = static_cast<int>(options.pool.size());
  job.ranks_of_host = static_cast<int>(options.pool.front().slots.size());
  job.join_timeout_s = options.join_timeout_s;
  std::set<int> dead;
  for (int i = 0; i < job.hosts; ++i) {
    if (!has_power(options.pool[static_cast<std::size_t>(i)].name)) dead.insert(i);
  }
  Start& start = starts_.emplace_back();
  start.began = timeline_.now();
  start.hosts = options.pool.size();
  SimulatedHosts hosts(job, network_, timeline_, dead);
  const auto name_of = [&](int host) { return options.pool[static_cast<std::size_t>(host)].name; };
  bool paused = false, stopped = false;
  const CoordinatorProtocol& coordinator = hosts.coordinator();
  for (;;) {
    timeline_.run_until(timeline_.now() + kLookS);
    for (int i = 0; i < job.hosts; ++i) {
      if (!hosts.is_lost(i) && !has_power(name_of(i))) hosts.lose(i);
    }
    if (coordinator.ready() && start.ready == 0) start.ready = timeline_.now();
    if (!coordinator.abort_text().empty() || coordinator.news().refusal || coordinator.all_left())
      break;
    if (!coordinator.ready()) continue;
    if (!paused && !stopped && options.pause && options.pause()) {
      paused = true;
      hosts.stop_hosts(SIGTERM);
    }
    if (!stopped && timeline_.now() >= until_) {
      stopped = true;
      for (int i = 0; i < job.hosts; ++i)
        hosts.leave(i);
    }
  }
  start.ended = timeline_.now();
  HostsEnd end;
  for (const int host : coordinator.lost_hosts())
    end.lost.push_back(name_of(host));
  for (const int host : dead) {
    if (!coordinator.ready()) end.lost.push_back(name_of(host));
  }
  start.lost = end.lost;
  end.error = coordinator.news().broken;
  if (!end.error) end.error = coordinator.news().refusal;
  if (end.error) {
    end.code = exit_code(end.error->kind);
  } else if (paused) {
    end.code = kExitTerminated;
  }
  return end;
}

}  // namespace tessera::hosts
