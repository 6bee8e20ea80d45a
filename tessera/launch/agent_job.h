// SPDX-License-Identifier: Apache-2.0
// The task that the process that starts a job on several hosts gives to the agent of each host.
#pragma once

#include <string>
#include <vector>

#include "tessera/launch/host_part.h"

namespace tessera::launch {

/// The task that an agent reads from its standard input or, if mpirun or srun started it, from
/// the head.
struct AgentJob {
  HostPart part;
  std::vector<std::string> words;  ///< words of `tessera train` after the command
};
/// Throws Error{Config} if the text is not that of agent_job_text().
AgentJob parse_agent_job(const std::string& text);
std::string agent_job_text(const AgentJob& job);

}  // namespace tessera::launch
