// SPDX-License-Identifier: Apache-2.0
// Hosts that a job has lost, and whether they can be reached again.
#pragma once

#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "tessera/hosts/hostfile.h"

namespace tessera::hosts {

/// Attempts to reach hosts, one for each host at a time, in the background.
class ReachHosts {
 public:
  ReachHosts() = default;
  virtual ~ReachHosts() = default;
  ReachHosts(const ReachHosts&) = delete;
  ReachHosts& operator=(const ReachHosts&) = delete;
  /// Begins an attempt.
  virtual void try_to_reach(const std::string& host) = 0;
  /// Returns whether the attempt has succeeded; nothing while it is under way.
  virtual std::optional<bool> reached(const std::string& host) = 0;
};

/// Tries from time to time to reach each absent host. Time is given by the caller. Threads: one.
class AbsentHosts {
 public:
  AbsentHosts(ReachHosts& reach, double interval_s) : reach_(reach), interval_s_(interval_s) {}

  void add(const std::string& name, double now);
  /// Continues the attempts; call it a few times in a second. Returns true if one has succeeded
  /// since the last call.
  bool look(double now);
  /// Returns the hosts of the pool that are not absent; with `reachable` also those that can be
  /// reached again. Cost: the hosts of the pool.
  [[nodiscard]] HostPool left(const HostPool& pool, bool reachable) const;
  /// The hosts that can be reached again are no longer absent.
  void welcome();
  [[nodiscard]] bool none() const { return hosts_.empty(); }

 private:
  struct Host {
    double next = 0.0;   // when to try again
    bool tried = false;  // an attempt is under way
    bool reachable = false;
  };

  ReachHosts& reach_;
  double interval_s_;
  std::unordered_map<std::string, Host> hosts_;
};

}  // namespace tessera::hosts
