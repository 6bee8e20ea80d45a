// SPDX-License-Identifier: Apache-2.0
// One call of a cluster's own launcher (mpirun, mpiexec, srun) that starts the agents of all hosts:
// its command line, the labels of its output, and the requests of its agents to the coordinator.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/hosts/agent_job.h"
#include "tessera/hosts/hostfile.h"

namespace tessera::hosts {

/// A launcher that starts one task on each host.
enum class ClusterLauncher : std::uint8_t {
  OpenMpi,  ///< mpirun of Open MPI
  Hydra,    ///< mpiexec of MPICH, Intel MPI and MVAPICH
  Slurm,    ///< srun, within an allocation or with one of its own
};
/// Returns the launcher that a value of --launcher names; nothing for "ssh", "pdsh" and "none".
std::optional<ClusterLauncher> cluster_launcher_of(std::string_view launcher);

/// The agents that a cluster launcher has to start, and how.
struct ClusterStart {
  std::vector<std::string> hosts;  ///< task i runs on hosts[i]
  int cores = 1;                   ///< Slurm: processors of each task
  std::string host_list;           ///< Slurm: path of a file with one host a line
  std::string folder;              ///< where the agents begin
  std::vector<std::string> agent;  ///< the command line of an agent
  std::vector<std::string> extra;  ///< options of the launcher as the user gave them
  std::optional<int> ssh_port;
};
/// The command that runs a cluster launcher.
struct ClusterCommand {
  std::vector<std::string> words;
  std::vector<std::pair<std::string, std::string>> variables;  ///< of its environment
};
/// Returns the call that starts one agent on each host, in the order of the hosts, bound to no
/// processors, with labelled output and the variable kAgentVariable passed on. Throws Error{Config}
/// for an ssh port that the launcher cannot use.
ClusterCommand cluster_command(ClusterLauncher launcher, const ClusterStart& start);

/// A line of a cluster launcher's output.
struct LabelledLine {
  int task = 0;
  std::string_view text;
};
/// Splits "[1,3]<stdout>:text", "[3] text" or "3: text". Returns nothing for a line without the
/// launcher's label, which is its own message.
std::optional<LabelledLine> split_label(ClusterLauncher launcher, std::string_view line);

/// The hosts of the Slurm allocation in which this process runs, with as many slots as it has tasks
/// on each, or `per_host` if given. Empty outside of an allocation. Throws Error{Config} for
/// variables that contradict each other.
HostPool slurm_allocation(std::optional<int> per_host);

/// The secret of a job whose agents a cluster launcher starts, and the text by which they find it.
struct AgentSecret {
  Secret secret;
  std::string text;
};
/// Returns a random secret, whose text is the secret itself; or, if TESSERA_SECRET_FILE names a
/// file that every host has, one that depends on that file and on a random number, which is the
/// text: the launcher, which may not encrypt what it carries, then carries no secret. Throws as
/// shared_secret().
AgentSecret agent_secret();

/// Variable in which agents of a cluster launcher find the coordinator and the secret of the job:
/// it is on no command line, and other users cannot read it.
inline constexpr const char* kAgentVariable = "TESSERA_AGENT";
std::string agent_variable(const std::string& secret_text, const std::string& master, int port);
/// The key under which the coordinator keeps the text of agent_job_text() for task `task`.
std::string agent_job_key(int task);

/// An agent's view of the cluster launcher that started it.
class ClusterAgent {
 public:
  /// Reads kAgentVariable and the number of this task, and removes both from the environment.
  /// Returns nothing if the variable is not set. Throws Error{Config} if it is malformed or the
  /// launcher gives no number.
  static std::optional<ClusterAgent> find();

  /// Asks the coordinator for the job, whose text has no secret. Throws Error{Comm} if it cannot be
  /// reached.
  AgentJob job();
  /// Reports the exit code, and the error behind it, to the coordinator; returns whether that was
  /// possible.
  [[nodiscard]] bool report_end(int code, const std::optional<HostProblem>& problem = {}) const;

 private:
  HostPart coordinator_;  ///< secret, master, port and, after job(), the part of this host
  int task_ = 0;
};

}  // namespace tessera::hosts
