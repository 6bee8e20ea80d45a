// SPDX-License-Identifier: Apache-2.0
#include "tessera/hosts/agent_job.h"

#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string_view>

#include <fmt/core.h>

#include "tessera/base/clock.h"
#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/base/version.h"
#include "tessera/hosts/coordinator_client.h"
#include "tessera/hosts/frames.h"

namespace tessera::hosts {
namespace {

/// The first line begins with the first text in all versions, and is the second one in this one.
constexpr std::string_view kName = "tessera-agent ";
std::string first_line() {
  return fmt::format("{}2 {}", kName, kTesseraVersion);
}

constexpr double kEndSeconds = 2.0;

}  // namespace

std::string agent_job_text(const AgentJob& job) {
  const HostPart& part = job.part;
  std::string text = fmt::format("{}\n{}\n{} {} {} {} {} {} {}\n{}\n{}\n{}\n",
                                 first_line(),
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
  text += fmt::format("{} {} {} {} {}\n",
                      part.copies.places.size(),
                      part.copies.own,
                      part.copies.neighbour,
                      part.copies.from.generation,
                      part.copies.from.step);
  for (const CopyPlace& place : part.copies.places)
    text += fmt::format("{} {} {}\n", place.port, place.address, place.host);
  for (const std::string& word : job.words)
    text += fmt::format("{}\n{}\n", word.size(), word);
  return text + "end\n";
}

AgentJob parse_agent_job(const std::string& job_text) {
  AgentJob job;
  HostPart& part = job.part;
  std::string_view rest = job_text;
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
  const std::string first = line();
  if (!first.starts_with(kName)) refuse();
  TESSERA_REQUIRE(
      first == first_line(),
      Config,
      fmt::format("this host has another version of tessera than the one that started the "
                  "job: {} and {}",
                  first_line().substr(kName.size()),
                  first.substr(kName.size())),
      "install the same program on every host, at the same path");
  part.is_agent = true;
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
  unsigned num_places = 0;
  long long step = 0;
  if (std::sscanf(line().c_str(),
                  "%u %d %d %d %lld",
                  &num_places,
                  &part.copies.own,
                  &part.copies.neighbour,
                  &part.copies.from.generation,
                  &step) != 5)
    refuse();
  part.copies.from.step = step;
  for (unsigned i = 0; i < num_places; ++i) {
    CopyPlace& place = part.copies.places.emplace_back();
    const std::vector<std::string> words = text::split(line(), ' ');
    if (words.size() != 3) refuse();
    place = {words[2], words[1], std::atoi(words[0].c_str())};
  }
  for (unsigned long i = 0; i < count; ++i) {
    const auto bytes = std::strtoul(line().c_str(), nullptr, 10);
    if (bytes >= rest.size() || rest[bytes] != '\n') refuse();
    job.words.emplace_back(rest.substr(0, bytes));
    rest.remove_prefix(bytes + 1);
  }
  const auto has_place = [&](int at) { return at >= -1 && at < static_cast<int>(num_places); };
  const bool whole = line() == "end" && has_place(part.copies.own) &&
                     has_place(part.copies.neighbour) && part.host >= 0 && part.host < part.hosts &&
                     part.generation >= 0 && part.first_rank >= 0 && part.local_ranks >= 1 &&
                     part.local_ranks <= part.world_size &&
                     part.first_rank <= part.world_size - part.local_ranks;
  if (!whole) refuse();
  return job;
}

bool report_end(const HostPart& part, int code, const std::optional<HostProblem>& problem) {
  try {
    FrameClient client(
        part.master, part.port, 1, part.secret, now_s() + kEndSeconds, part.world_size);
    FrameWriter frame(FrameType::Ended);
    frame.number(static_cast<std::int32_t>(part.host)).number(static_cast<std::int32_t>(code));
    if (problem) write_problem(frame, *problem);
    client.send(frame);
    return client.receive(now_s() + kEndSeconds).has_value();
  } catch (const Error&) {
    return false;  // the process that started the hosts has ended
  }
}

}  // namespace tessera::hosts
