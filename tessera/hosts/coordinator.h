// SPDX-License-Identifier: Apache-2.0
// The meeting point of the hosts of a job: it runs in the process that started the hosts, or in
// rank 0 if another launcher did.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "tessera/hosts/frames.h"
#include "tessera/hosts/host_facts.h"
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

/// Accepts the hosts of one job, tells them when all have arrived, forwards changes of their
/// control pages, and keeps values that ranks exchange before their transport exists. If a host is
/// lost, the others are told within `silence_s`. A connection that does not prove that it belongs
/// to the job is closed, and none of its data is interpreted. Threads: one of its own; the methods
/// may be called from any thread.
class Coordinator {
 public:
  /// Listens from now on. Throws Error{Environment} if none of the ports is free, or if the address
  /// is not one of this host.
  explicit Coordinator(CoordinatorOptions options);
  ~Coordinator();
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;

  [[nodiscard]] int port() const { return port_; }
  /// Starts the thread. Processes may be forked before this call, not after it.
  void start();
  /// Returns whether all hosts have arrived.
  [[nodiscard]] bool ready() const;
  /// Forwards a signal to every host.
  void stop_hosts(int signal);
  /// Waits until every host has left or is lost.
  void wait_until_left();
  /// Returns the error that broke the world; empty if there is none.
  [[nodiscard]] std::string abort_text() const;
  /// Returns the indices of the hosts that fell silent, or whose connection ended before they had
  /// left, or before all had arrived.
  [[nodiscard]] std::vector<int> lost_hosts() const;
  /// Returns the exit codes that agents have reported (FrameType::Ended), by host.
  [[nodiscard]] std::map<int, int> exit_codes() const;
  /// Returns what the job's hosts and this coordinator have said about its end so far.
  [[nodiscard]] CoordinatorNews news() const;
  /// Waits until everything that has arrived is handled; at most a second.
  void settle();

 private:
  class Server;
  std::unique_ptr<Server> server_;
  std::thread thread_;
  int port_ = 0;
};

}  // namespace tessera::hosts
