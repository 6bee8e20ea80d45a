// SPDX-License-Identifier: Apache-2.0
#include "tessera/launch/agent_job.h"

#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string_view>

#include <fmt/core.h>

#include "tessera/base/error.h"

namespace tessera::launch {

std::string agent_job_text(const AgentJob& job) {
  const HostPart& part = job.part;
  std::string text = fmt::format("tessera-agent 1\n{}\n{} {} {} {} {} {} {}\n{}\n{}\n{}\n",
                                 to_hex(part.secret),
                                 part.host,
                                 part.hosts,
                                 part.first_rank,
                                 part.local_ranks,
                                 part.world_size,
                                 part.port,
                                 part.generation,
                                 part.name,
                                 part.master,
                                 job.words.size());
  for (const std::string& word : job.words)
    text += fmt::format("{}\n{}\n", word.size(), word);
  return text + "end\n";
}

AgentJob parse_agent_job(const std::string& text) {
  AgentJob job;
  HostPart& part = job.part;
  std::string_view rest = text;
  const auto refuse = [] {
    throw Error(Error::Kind::Config,
                "standard input does not say what this agent has to do",
                "agents are started by: tessera train CONFIG --hostfile FILE");
  };
  const auto line = [&] {
    const std::size_t end = rest.find('\n');
    if (end == std::string_view::npos) refuse();
    const std::string found(rest.substr(0, end));
    rest.remove_prefix(end + 1);
    return found;
  };
  if (line() != "tessera-agent 1") refuse();
  const std::optional<Secret> secret = secret_from_hex(line());
  if (!secret) refuse();
  part.secret = *secret;
  const std::string numbers = line();
  if (std::sscanf(numbers.c_str(),
                  "%d %d %d %d %d %d %d",
                  &part.host,
                  &part.hosts,
                  &part.first_rank,
                  &part.local_ranks,
                  &part.world_size,
                  &part.port,
                  &part.generation) != 7)
    refuse();
  part.name = line();
  part.master = line();
  const auto count = std::strtoul(line().c_str(), nullptr, 10);
  for (unsigned long i = 0; i < count; ++i) {
    const auto bytes = std::strtoul(line().c_str(), nullptr, 10);
    if (bytes >= rest.size() || rest[bytes] != '\n') refuse();
    job.words.emplace_back(rest.substr(0, bytes));
    rest.remove_prefix(bytes + 1);
  }
  const bool whole = line() == "end" && part.host >= 0 && part.host < part.hosts &&
                     part.generation >= 0 && part.first_rank >= 0 && part.local_ranks >= 1 &&
                     part.local_ranks <= part.world_size &&
                     part.first_rank <= part.world_size - part.local_ranks;
  if (!whole) refuse();
  return job;
}

}  // namespace tessera::launch
