// SPDX-License-Identifier: Apache-2.0
#include "tessera/hosts/job_end.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include <fmt/core.h>
#include <sys/wait.h>

#include "tessera/base/text.h"
#include "tessera/launch/rank_end.h"

namespace tessera::hosts {
namespace {

/// The fault of one host, without its name.
struct Cause {
  HostProblem problem;
  std::vector<std::string> hosts;
};

bool ended_in_order(const HostEnd& host) {
  return WIFEXITED(host.status) && launch::is_orderly(WEXITSTATUS(host.status));
}

HostProblem problem_of_status(const HostEnd& host, const JobEnd& end) {
  constexpr auto kEnvironment = Error::Kind::Environment;
  if (WIFSIGNALED(host.status)) {
    return {Error::Kind::Comm,
            fmt::format("its agent was ended by {}", launch::signal_text(WTERMSIG(host.status))),
            "see who ended it (dmesg says whether memory ran out), then start the job again"};
  }
  switch (WEXITSTATUS(host.status)) {
    case kSshFailed:
      return {
          kEnvironment, "ssh cannot reach it, or lost it", "type `ssh HOST hostname` to see why"};
    case kNoFolder:
      return {kEnvironment,
              fmt::format("it has no folder {}", end.folder),
              "start the job in a folder that every host has, on a disk that all share"};
    case kNotFound:
      return {kEnvironment,
              fmt::format("it has no program {}", end.program),
              "install the same program on every host, at the same path"};
    case kNotExecutable:
      return {kEnvironment,
              fmt::format("it cannot run the program {}", end.program),
              "install the same program on every host, at the same path"};
    default:
      return {launch::kind_of(WEXITSTATUS(host.status)),
              fmt::format("its agent ended with exit code {}", WEXITSTATUS(host.status)),
              "see its messages above"};
  }
}

/// The mistakes of single hosts; those with the same one are named together.
std::vector<HostProblem> problems_of_hosts(const JobEnd& end) {
  std::vector<Cause> causes;
  for (const HostEnd& host : end.hosts) {
    if (!host.told && (host.killed || ended_in_order(host))) continue;
    // An agent whose coordinator refused it, or whose world was broken, ends with that code.
    const bool explained = end.refusal || end.report || end.broken;
    const bool plain = WIFEXITED(host.status) && WEXITSTATUS(host.status) < kNoFolder;
    if (!host.told && explained && plain) continue;
    const HostProblem problem = host.told ? *host.told : problem_of_status(host, end);
    const auto same = std::ranges::find_if(causes, [&](const Cause& cause) {
      return cause.problem.what == problem.what && cause.problem.fix == problem.fix;
    });
    if (same == causes.end()) {
      causes.push_back({problem, {host.host}});
    } else {
      same->hosts.push_back(host.host);
    }
  }
  std::vector<HostProblem> out;
  for (Cause& cause : causes) {
    cause.problem.what = fmt::format("{} {}: {}",
                                     cause.hosts.size() == 1 ? "host" : "hosts",
                                     text::join_some(cause.hosts, ", "),
                                     cause.problem.what);
    out.push_back(std::move(cause.problem));
  }
  return out;
}

}  // namespace

std::optional<HostProblem> error_of_job(const JobEnd& end) {
  // Ranks that failed name the cause; before they began, the hosts do.
  const std::vector<HostProblem> problems = problems_of_hosts(end);
  std::optional<HostProblem> out;
  if (end.report) {
    out = end.report;
  } else if (end.met && end.broken) {
    out = end.broken;
  } else if (!problems.empty()) {
    out = joined(problems);
  } else {
    out = end.refusal ? end.refusal : end.broken;
  }
  if (out && out->fix.empty()) {
    out->fix = end.met
                   ? "see the messages above, then start the job again: it goes on from the newest "
                     "complete checkpoint"
                   : "see the messages above";
  }
  return out;
}

}  // namespace tessera::hosts
