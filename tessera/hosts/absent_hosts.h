// SPDX-License-Identifier: Apache-2.0
// Hosts that a job has lost, and whether they can be reached again.
#pragma once

#include <string>
#include <vector>

#include <sys/types.h>

#include "tessera/hosts/hostfile.h"
#include "tessera/hosts/run_on_hosts.h"

namespace tessera::hosts {

/// Tries from time to time to run the program on each absent host, over ssh, in the background.
/// This host itself counts as reachable after one interval. Threads: one.
class AbsentHosts {
 public:
  AbsentHosts(const RemoteOptions& options, double interval_s);
  /// Ends attempts that are under way.
  ~AbsentHosts();
  AbsentHosts(const AbsentHosts&) = delete;
  AbsentHosts& operator=(const AbsentHosts&) = delete;

  void add(const std::string& name);
  /// Continues the attempts; call it a few times in a second. Returns true if one has succeeded
  /// since the last call.
  bool look();
  /// Returns the hosts of the pool that are not absent; with `reachable` also those that can be
  /// reached again.
  [[nodiscard]] HostPool left(const HostPool& pool, bool reachable) const;
  /// The hosts that can be reached again are no longer absent.
  void welcome();
  [[nodiscard]] bool none() const { return hosts_.empty(); }

 private:
  struct Host {
    std::string name;
    double next = 0.0;   // when to try again
    double since = 0.0;  // when the attempt began
    pid_t attempt = 0;   // 0: none is under way
    bool reachable = false;
  };
  void try_to_reach(Host& host);

  const RemoteOptions& options_;
  double interval_s_;
  std::vector<Host> hosts_;
};

}  // namespace tessera::hosts
