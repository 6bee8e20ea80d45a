// SPDX-License-Identifier: Apache-2.0
// A simulation of the hosts of a job that meet, share what their ranks do, and are lost: the
// protocols of the coordinator and of the hosts (coordinator_protocol.h, host_protocol.h) on a
// network with delays and losses, in virtual time. The hosts are coroutines of one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <set>
#include <string>
#include <vector>

#include "tessera/hosts/coordinator_protocol.h"
#include "tessera/hosts/elastic_hosts.h"

namespace tessera::hosts {

/// Virtual time and what is going to happen. Threads: one.
class Timeline {
 public:
  [[nodiscard]] double now() const { return now_; }
  /// Number of things that have been added: a measure of the work of the protocols.
  [[nodiscard]] std::uint64_t num_events() const { return number_; }
  /// `what` happens at a time, after everything else that was added for the same time.
  void at(double time, std::function<void()> what);
  /// Lets things happen until `done` returns true, or until the time `limit`. Returns done().
  bool run_until(double limit, const std::function<bool()>& done = {});

 private:
  struct Event {
    double time;
    std::uint64_t number;
    std::function<void()> what;
    bool operator>(const Event& other) const {
      return time > other.time || (time == other.time && number > other.number);
    }
  };
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  double now_ = 0.0;
  std::uint64_t number_ = 0;
};

/// Connections lose nothing, as those of TCP: what the network loses arrives late, and in order.
struct SimulatedNetwork {
  double latency_s = 2e-4;      ///< in one direction
  double jitter_s = 1e-4;       ///< added, between 0 and this
  double loss = 0.0;            ///< probability that a message is sent again
  double retransmit_s = 0.2;    ///< before it is; doubled each time
  double bytes_per_s = 1.25e9;  ///< of the coordinator's host, in each direction
  double message_s = 4e-6;      ///< time of the coordinator for a message
  std::uint64_t seed = 1;
};

struct SimulatedJob {
  int hosts = 1, ranks_of_host = 1;
  double start_spread_s = 0.5;  ///< the agents start at random within this time
  double join_timeout_s = 60.0, silence_s = 8.0;
};

/// Messages and bytes of one host, in both directions.
struct HostTraffic {
  std::int64_t sent = 0, received = 0, sent_bytes = 0, received_bytes = 0;
};

/// One start of a job. Threads: one.
class SimulatedHosts {
 public:
  /// The agents of hosts that are in `dead` never start. `timeline` must outlive this object.
  SimulatedHosts(const SimulatedJob& job,
                 const SimulatedNetwork& network,
                 Timeline& timeline,
                 const std::set<int>& dead = {});
  ~SimulatedHosts();
  SimulatedHosts(const SimulatedHosts&) = delete;
  SimulatedHosts& operator=(const SimulatedHosts&) = delete;

  [[nodiscard]] const CoordinatorProtocol& coordinator() const;
  void stop_hosts(int signal);
  /// Hosts whose protocol knows that all have arrived, and those that know that the world is
  /// broken. Hosts that were lost count as neither.
  [[nodiscard]] int num_ready() const;
  [[nodiscard]] int num_broken() const;
  [[nodiscard]] bool is_lost(int host) const;
  /// The message with which the world of a host was broken, or with which it was refused.
  [[nodiscard]] std::string end_of(int host) const;

  /// A host loses its power: it sends nothing any more. With `ends_connection` its process dies,
  /// and its kernel says so.
  void lose(int host, bool ends_connection = false);
  /// Nothing reaches or leaves a host for some time.
  void cut_off(int host, double seconds);
  /// The ranks of a host have ended in order.
  void leave(int host);

  /// Writes a rank's line of the control page: its step, and the rank for which it waits (-1:
  /// none).
  void set_line(int rank, std::int64_t step, int waits_for = -1);
  /// The step of a rank as a host sees it; nothing if it has no line of it.
  [[nodiscard]] std::optional<std::int64_t> seen_step(int host, int rank) const;
  /// Number of lines of other hosts that a host keeps.
  [[nodiscard]] std::size_t num_seen(int host) const;

  [[nodiscard]] HostTraffic traffic(int host) const;
  /// The largest traffic of a host, each number by itself.
  [[nodiscard]] HostTraffic largest_traffic() const;

 private:
  class World;
  std::unique_ptr<World> world_;
};

/// The world of an elastic job (run_elastic()) as a simulation: hosts are lost and come back at
/// given times. Threads: one.
class SimulatedElasticWorld final : public ElasticWorld {
 public:
  SimulatedElasticWorld(SimulatedNetwork network, Timeline& timeline)
      : network_(network), timeline_(timeline) {}

  /// A host has no power from a time on, and has it again at another one.
  void lose(const std::string& host, double from, double until);
  /// Ends the training after this virtual time; it ends in order.
  void train_until(double time) { until_ = time; }

  /// One start of the ranks, as it happened.
  struct Start {
    double began = 0, ready = 0, ended = 0;
    std::size_t hosts = 0;
    std::vector<std::string> lost;
  };
  [[nodiscard]] const std::vector<Start>& starts() const { return starts_; }

  HostsEnd run(const RemoteOptions& options) override;
  [[nodiscard]] double now() const override { return timeline_.now(); }
  void sleep(double seconds) override { timeline_.run_until(timeline_.now() + seconds); }
  void try_to_reach(const std::string& host) override;
  std::optional<bool> reached(const std::string& host) override;

 private:
  struct Outage {
    double from = 0, until = 0;
  };
  [[nodiscard]] bool has_power(const std::string& host) const;

  SimulatedNetwork network_;
  Timeline& timeline_;
  std::map<std::string, std::vector<Outage>> outages_;
  std::map<std::string, double> attempts_;
  std::vector<Start> starts_;
  double until_ = 1e9;
};

}  // namespace tessera::hosts
