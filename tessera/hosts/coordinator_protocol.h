// SPDX-License-Identifier: Apache-2.0
// The coordinator's part of the protocol between a job's hosts and itself, without sockets, threads
// or a clock of its own: they are arguments, so that a simulation drives the same code
// (simulated_hosts.h).
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/hosts/coordinator_links.h"
#include "tessera/hosts/coordinator_store.h"
#include "tessera/hosts/frames.h"
#include "tessera/hosts/host_facts.h"
#include "tessera/hosts/rank_lines.h"
#include "tessera/hosts/secret.h"

namespace tessera::hosts {

/// Facts on which the hosts of a job must agree, and options of the coordinator.
struct CoordinatorOptions {
  std::string address;  ///< an address of this host; nothing listens on its other addresses
  int port = 0;         ///< 0: any free one
  int ports = 1;        ///< number of ports to try; the first free one is used
  Secret secret;
  int world_size = 1;
  double join_timeout_s = 60.0;
  /// A host that sends nothing for this long is lost.
  double silence_s = 8.0;
  /// Called with notices for the user, for example that a stranger tried to connect. Threads: the
  /// coordinator's.
  std::function<void(const std::string&)> notice;
  /// Called with the table of hosts (host_facts.h) when all have arrived; in the same thread.
  std::function<void(const std::vector<std::string>&)> table;
  /// The hosts of the job in the order of their ranks, if they are known: name, number of ranks.
  std::vector<std::pair<std::string, int>> hosts;
  /// Values that are there from the beginning (FrameType::Get).
  std::map<std::string, std::string> values;
};

/// A coordinator's knowledge of the end of its job.
struct CoordinatorNews {
  std::optional<HostProblem> refusal;  ///< why the hosts were refused
  std::optional<HostProblem> report;   ///< FrameType::Report
  std::optional<HostProblem> broken;   ///< why the world was broken
  std::map<int, HostProblem> told;     ///< errors that ended agents, by host
};

/// The time as a protocol sees it.
struct ProtocolClock {
  std::function<double()> now;   ///< monotonic, in seconds
  std::function<double()> wall;  ///< seconds since 1970
};
/// The clocks of this host.
ProtocolClock clocks_of_this_host();

/// Accepts the hosts of one job, tells them when all have arrived, shares the lines of their ranks,
/// and keeps values that ranks exchange before their transport exists. In one second a host gets at
/// most one frame that shows life and, while lines change, one with lines for each interval of
/// lines_interval_s(). Threads: handle(), look(), stop_hosts() and gone() are called in one thread,
/// the const methods in any.
class CoordinatorProtocol {
 public:
  /// `links` must outlive this object.
  CoordinatorProtocol(CoordinatorOptions options, CoordinatorLinks& links, ProtocolClock clock);

  /// The time for the arrival of the hosts begins.
  void begin();
  /// Answers a frame of a host. Throws Error{Comm} for one that breaks the protocol: the caller
  /// closes the connection.
  void handle(CoordinatorPeer& peer, const Frame& frame);
  /// Does what depends on the time: refuses a job whose hosts do not arrive, finds silent hosts,
  /// shows life and shares lines. Returns when it is to be called next. Cost: the hosts, at most a
  /// few times in a second.
  double look();
  /// A connection has ended and is about to be forgotten.
  void gone(CoordinatorPeer& peer);
  /// Forwards a signal to every host.
  void stop_hosts(int signal);

  [[nodiscard]] bool ready() const { return ready_; }
  /// Waits until every host has left or is lost, or until end().
  void wait_until_left();
  void end();
  [[nodiscard]] bool all_left() const;
  [[nodiscard]] std::string abort_text() const;
  [[nodiscard]] std::vector<int> lost_hosts() const;
  [[nodiscard]] std::map<int, int> exit_codes() const;
  [[nodiscard]] CoordinatorNews news() const;

 private:
  using Peer = CoordinatorPeer;
  void join(Peer& peer, FrameReader& body);
  void take_facts(Peer& peer, FrameReader& body);
  void tell_of_slow_hosts();
  void ended(Peer& peer, FrameReader& body);
  void wait_for_more();
  void note(HostProblem problem);
  void compare();
  void all_are_here();
  void probed(Peer& peer, FrameReader& body);
  void all_ready();
  [[nodiscard]] const Peer* host_with_ranks_of(const Peer& peer) const;
  void forget_ranks(const Peer& peer);
  void show_hosts() const;
  void refuse_all();
  void refuse(Error::Kind kind, const std::string& what, const std::string& fix);
  void refuse_missing();
  void broadcast(const FrameWriter& frame);
  void break_world(int rank, std::uint32_t kind, const std::string& text, const Peer* from);
  void leave(Peer& peer);
  void lose(Peer& peer, const std::string& how);
  void find_silent();
  void tell(const std::string& text) const;

  CoordinatorOptions options_;
  CoordinatorLinks& links_;
  ProtocolClock clock_;
  std::map<int, Peer*> hosts_;  // those that have joined, by their first rank
  std::vector<HostProblem> problems_;
  double deadline_ = 0.0;
  double refuse_at_ = std::numeric_limits<double>::infinity();  // earlier if there are problems
  int probing_ = 0;  // hosts that have not yet answered whom they reach
  CoordinatorStore values_;
  RankLines lines_;
  std::string refusal_;
  double told_alive_ = 0.0, next_look_ = 0.0, next_lines_ = 0.0;
  int arrived_ = 0, compared_ = 0;  // ranks whose hosts have joined, and have sent their facts
  double told_slow_ = 0.0;
  std::atomic<bool> ready_{false};
  bool refused_ = false;

  mutable std::mutex mutex_;  // for all members below
  std::condition_variable left_;
  bool ended_ = false;
  std::string abort_text_;
  int gone_ = 0;  // ranks whose hosts have left
  std::vector<int> lost_;
  std::map<int, int> exit_codes_;
  CoordinatorNews news_;
};

}  // namespace tessera::hosts
