// SPDX-License-Identifier: Apache-2.0
// The task that the process that starts a job on several hosts gives to the agent of each host.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tessera/hosts/host_facts.h"
#include "tessera/hosts/host_part.h"

namespace tessera::hosts {

/// The task that an agent reads from its standard input or, if mpirun or srun started it, from
/// the coordinator.
struct AgentJob {
  HostPart part;
  std::vector<std::string> words;  ///< words of `tessera train` after the command
};
/// Throws Error{Config} if the text is not that of agent_job_text(), and names both versions if
/// another version of tessera has written it.
AgentJob parse_agent_job(const std::string& text);
std::string agent_job_text(const AgentJob& job);
/// Tells the coordinator of the job with which exit code the agent of a part ends, and because of
/// which error, if it has one. Returns false if the coordinator does not answer.
bool report_end(const HostPart& part, int code, const std::optional<HostProblem>& problem = {});

}  // namespace tessera::hosts
