// SPDX-License-Identifier: Apache-2.0
// The one error with which a job on several hosts ends.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tessera/hosts/host_facts.h"

namespace tessera::hosts {

/// Exit code of an agent's shell if the host has no folder of the name of the current one.
inline constexpr int kNoFolder = 121;
/// Exit codes of a shell, and of ssh.
inline constexpr int kNotExecutable = 126, kNotFound = 127, kSshFailed = 255;

/// How the part of one host ended.
struct HostEnd {
  std::string host;                 ///< as its hostfile names it
  int status = 0;                   ///< of its agent, as waitpid() returns it
  bool killed = false;              ///< by this process, because of something else
  std::optional<HostProblem> told;  ///< the error that ended the agent, as it reported it
};

/// Everything that is known about the end of a job.
struct JobEnd {
  std::vector<HostEnd> hosts;
  bool met = false;                    ///< the hosts have met, and the ranks have begun
  std::optional<HostProblem> refusal;  ///< why the coordinator refused the hosts
  std::optional<HostProblem> report;   ///< how the first rank failed, by the supervisor of a host
  std::optional<HostProblem> broken;   ///< why the coordinator broke the world
  std::string program, folder;         ///< of this host, which the others need too
};

/// Returns the error that explains the end, with what to do about it: nothing if every host ended
/// in order. Hosts with the same mistake are named together.
std::optional<HostProblem> error_of_job(const JobEnd& end);

}  // namespace tessera::hosts
