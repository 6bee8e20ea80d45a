// SPDX-License-Identifier: Apache-2.0
// The meeting point of the hosts of a job: it runs in the process that started the hosts, or in
// rank 0 if another launcher did.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tessera/hosts/coordinator_protocol.h"

namespace tessera::hosts {

/// Runs a CoordinatorProtocol on sockets. If a host is lost, the others are told within
/// `silence_s`. A connection that does not prove that it belongs to the job is closed, and none of
/// its data is interpreted. Threads: one of its own; the methods may be called from any thread.
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
