// SPDX-License-Identifier: Apache-2.0
// The copy servers of a job's hosts: the process that starts the hosts starts one on each, and
// keeps them while the ranks start again and again.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tessera/hosts/copy_client.h"
#include "tessera/hosts/host_part.h"
#include "tessera/hosts/hostfile.h"
#include "tessera/hosts/run_on_hosts.h"

namespace tessera::hosts {

/// Copies end with this object, or with its process: the servers end when their standard input is
/// closed. Threads: one.
class CopyServers {
 public:
  /// `options.secret` must be set; the servers know it.
  explicit CopyServers(const RemoteOptions& options);
  ~CopyServers();
  CopyServers(const CopyServers&) = delete;
  CopyServers& operator=(const CopyServers&) = delete;

  /// Starts servers on hosts of the pool that have none, all at once, and waits up to 20 s. A host
  /// that has none afterwards is reported as a notice.
  void start(const HostPool& pool);
  /// Ends the servers of hosts that were lost.
  void forget(const std::vector<std::string>& hosts);
  /// Shows the servers that this process is alive; call it at least once in five minutes.
  void show_life();
  /// Asks all servers, and forgets those that do not answer within two seconds.
  FoundCopies find();
  /// Returns the part of host `host` of the pool. It is empty if some host of the pool has no
  /// server: then no copies are made. `from`: the set that the ranks begin with; if there is none,
  /// the part names no other servers than that host's own and its neighbour's. Call start() first.
  [[nodiscard]] CopyPart part_of(const HostPool& pool, int host, const CopySet& from) const;

 private:
  struct Process;
  void start_one(const std::string& host);
  void await_all(double deadline);
  [[nodiscard]] std::map<std::string, int> indices() const;

  const RemoteOptions& options_;
  std::string coordinator_;
  std::vector<std::unique_ptr<Process>> processes_;
  // The state of the last start(): processes_ by the names of their hosts, and the number of hosts
  // of the pool that have one.
  std::map<std::string, int> index_;
  std::size_t all_of_ = 0;
};

}  // namespace tessera::hosts
