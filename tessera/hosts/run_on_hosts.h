// SPDX-License-Identifier: Apache-2.0
// Starts one agent on each host of a job, over ssh, directly on this host, or with one call of
// mpirun, mpiexec or srun; passes their output on, and waits until all have ended.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/hosts/agent_job.h"
#include "tessera/hosts/cluster_launcher.h"
#include "tessera/hosts/host_part.h"
#include "tessera/hosts/hostfile.h"

namespace tessera::hosts {

/// The start of agents.
struct RemoteOptions {
  HostPool pool;
  std::string program;  ///< path of the program, the same on every host
  /// Words of its command line after the name of the agent's command.
  std::vector<std::string> words;
  std::string master_address;  ///< empty: the address of this host on the way to the others
  int master_port = 0;         ///< 0: any free one
  std::optional<ClusterLauncher>
      cluster_launcher;  ///< starts all agents at once; empty: one ssh for each host
  std::optional<int> ssh_port;
  /// Options of ssh, mpirun, mpiexec or srun, or a command that is run on each host first.
  std::string launcher_args;
  /// The other hosts are started by hand: only the agent of the first host is started, on this one,
  /// and the others find the coordinator at master_address and master_port.
  bool by_hand = false;
  std::optional<Secret> secret;  ///< empty: a random one
  double join_timeout_s = 60.0;
  std::function<void(const std::string&)> notice;
  std::function<void(const std::vector<std::string>&)> table;  ///< as CoordinatorOptions::table
  int generation = 0;                                          ///< as HostPart::generation
  /// Returns the copy servers as host `host` of the pool uses them. Empty: there are none.
  std::function<CopyPart(int host)> copies;
  /// Called a few times in a second once the hosts have met. If it returns true, the ranks save and
  /// end after their step. Empty: never.
  std::function<bool()> pause;
};

/// The end of a job on several hosts.
struct HostsEnd {
  int code = 0;
  /// Hosts that could not be reached, did not arrive, fell silent, or whose agent has died.
  std::vector<std::string> lost;
  bool stopped = false;  ///< a signal asked this process to stop the job
  /// The error with which the job ended; its kind has the exit code `code`. Nothing if it ended in
  /// order or was stopped.
  std::optional<HostProblem> error;
};

/// Returns the address of this host on the route to `name`; finding the route sends nothing. Throws
/// Error{Config} if the name has no address or there is no route.
std::string address_towards(const std::string& name);
/// Returns the address at which the hosts of a job find its coordinator.
std::string master_address(const RemoteOptions& options);

/// Runs the job. Its exit code is that of the host of rank 0, or else the first one that is not 0.
/// Each agent receives the job's secret and its part on its standard input; agents of a cluster
/// launcher receive the secret in their environment and their part from the coordinator. The
/// standard output of the host of rank 0 is passed on unchanged, every other line with the name of
/// its host. A stop signal is sent to all hosts; one that comes before they have met, or a third
/// one, ends them. No agent outlives this call or this process. Throws Error{Config} if a host has
/// no address, and Error{Environment} if ssh, mpirun or srun cannot be run.
HostsEnd run_job_on_hosts(const RemoteOptions& options);

}  // namespace tessera::hosts
