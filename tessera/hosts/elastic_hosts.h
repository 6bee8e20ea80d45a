// SPDX-License-Identifier: Apache-2.0
// A job of several hosts that goes on without lost hosts, and with hosts that come back.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tessera/hosts/absent_hosts.h"
#include "tessera/hosts/hostfile.h"
#include "tessera/hosts/run_on_hosts.h"

namespace tessera::hosts {

/// Defines on which hosts a job may run, and how often its ranks are started again.
struct ElasticOptions {
  int min_hosts = 0;        ///< 0: all hosts of the pool
  int max_hosts = 0;        ///< 0: all hosts of the pool; further ones replace lost ones
  int restarts = 0;         ///< starts after the first one that follow a loss
  double min_time_s = 0.0;  ///< least time from the start of the ranks until a host may join
  double probe_s = 5.0;     ///< time between two attempts to reach an absent host
  /// If true, each host keeps copies of the training state of its own ranks and of those of the
  /// host before it (copy_server.h).
  bool peer_copies = false;
  double patience_s = 60.0;  ///< how long to wait for absent hosts if those left are too few
  /// Returns the words of the command line by which a number of ranks trains the same global batch;
  /// nothing: they cannot share it.
  std::function<std::optional<std::vector<std::string>>(int ranks)> words;
};

/// The hosts on which the ranks run next, and the words that their command line gets besides.
struct ElasticChoice {
  HostPool pool;
  std::vector<std::string> words;
};
/// Returns the largest number of slots of at least min_hosts and at most max_hosts of the hosts
/// that `words` accepts: the first hosts of the pool, with as equal numbers of slots as they have
/// if not all slots are used. Returns nothing if there is none. Cost: one call of `words` for each
/// number of slots.
std::optional<ElasticChoice> choose_hosts_of(const HostPool& pool, const ElasticOptions& options);

/// The surroundings of an elastic job: hosts that can be reached, starts of its ranks, and time. A
/// simulation is one, too (simulated_hosts.h).
class ElasticWorld : public ReachHosts {
 public:
  /// Runs the ranks once, as run_job_on_hosts() does.
  virtual HostsEnd run(const RemoteOptions& options) = 0;
  [[nodiscard]] virtual double now() const = 0;
  virtual void sleep(double seconds) = 0;
};

/// Runs the job of `options` again and again, as run_on_hosts() does, until it ends for another
/// reason than a lost rank or host, a signal stops it, or the restarts are used up; returns how it
/// ended. Every start resumes from the copies that the memories of the hosts complete, or else
/// from the newest checkpoint, and leaves out the hosts that were lost. When an absent host can be
/// reached again and makes more ranks possible, the ranks save and end, and start again with it.
/// Throws Error{Config} if no number of slots of the pool is possible.
HostsEnd run_elastic(const RemoteOptions& options, const ElasticOptions& elastic);
/// The same in another world.
HostsEnd run_elastic(const RemoteOptions& options,
                     const ElasticOptions& elastic,
                     ElasticWorld& world);

}  // namespace tessera::hosts
