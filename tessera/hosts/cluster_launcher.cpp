// SPDX-License-Identifier: Apache-2.0
#include "tessera/hosts/cluster_launcher.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>

#include <fmt/core.h>
#include <unistd.h>

#include "tessera/base/clock.h"
#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/hosts/detect_launcher.h"
#include "tessera/hosts/frames.h"
#include "tessera/launch/launch.h"

namespace tessera::hosts {
namespace {

constexpr double kJobSeconds = 60.0;  // time for the coordinator to answer
/// Precedes the random number of a secret that depends on a file.
const std::string kOfFile = "file:";

/// Returns the secret that agent_secret() has described.
std::optional<Secret> described_secret(const std::string& text) {
  if (!text.starts_with(kOfFile)) return secret_from_hex(text);
  const Secret secret = shared_secret(text);
  TESSERA_REQUIRE(!secret.guessable,
                  Config,
                  fmt::format("this agent has no {}, which the process that started the hosts has",
                              kSecretFile),
                  fmt::format("pass it on: mpirun -x {}", kSecretFile));
  return secret;
}

/// Returns the first of `names` that is a program in PATH, or the last one.
std::string program_of(std::initializer_list<const char*> names) {
  const char* const path = std::getenv("PATH");
  for (const char* name : names) {
    for (const std::string& folder : text::split(path == nullptr ? "" : path, ':')) {
      const std::filesystem::path file = std::filesystem::path(folder) / name;
      if (!folder.empty() && access(file.c_str(), X_OK) == 0) return name;
    }
  }
  return *(names.end() - 1);
}

std::optional<int> digits(std::string_view text) {
  int value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc() && stop == text.data() + text.size() && value >= 0;
  return whole ? std::optional(value) : std::nullopt;
}

ClusterCommand open_mpi(const ClusterStart& start) {
  ClusterCommand out;
  out.words = {program_of({"mpirun.openmpi", "mpirun"}),
               "-np",
               std::to_string(start.hosts.size()),
               "--host",
               text::join(start.hosts, ","),
               "--map-by",
               "seq",
               "--bind-to",
               "none",
               "--tag-output",
               "--wdir",
               start.folder,
               "-x",
               kAgentVariable};
  // A user who starts the job as root has chosen to do so.
  if (geteuid() == 0) out.words.emplace_back("--allow-run-as-root");
  if (start.ssh_port) {
    out.words.insert(out.words.end(),
                     {"--mca", "plm_rsh_args", fmt::format("-p {}", *start.ssh_port)});
  }
  return out;
}

ClusterCommand hydra(const ClusterStart& start) {
  ClusterCommand out;
  out.words = {program_of({"mpiexec.hydra", "mpiexec.mpich", "mpiexec"}),
               "-n",
               std::to_string(start.hosts.size()),
               "-ppn",
               "1",
               "-hosts",
               text::join(start.hosts, ","),
               "-prepend-rank",
               "-wdir",
               start.folder};
  if (start.ssh_port)
    out.variables.emplace_back("HYDRA_LAUNCHER_EXTRA_ARGS", fmt::format("-p {}", *start.ssh_port));
  return out;
}

ClusterCommand slurm(const ClusterStart& start) {
  TESSERA_REQUIRE(!start.ssh_port,
                  Config,
                  "--ssh_port with --launcher slurm: srun does not use ssh",
                  "remove --ssh_port");
  ClusterCommand out;
  const std::string hosts = std::to_string(start.hosts.size());
  out.words = {"srun",
               "--nodes=" + hosts,
               "--ntasks=" + hosts,
               "--distribution=arbitrary",
               fmt::format("--cpus-per-task={}", start.cores),
               "--label",
               "--input=none",
               "--kill-on-bad-exit=1",
               "--export=ALL",
               "--chdir=" + start.folder};
  // A step of an allocation shares it with the step in which this process may run.
  if (std::getenv("SLURM_JOB_ID") != nullptr) out.words.emplace_back("--overlap");
  out.variables.emplace_back("SLURM_HOSTFILE", start.host_list);
  return out;
}

}  // namespace

std::optional<ClusterLauncher> cluster_launcher_of(std::string_view launcher) {
  if (launcher == "openmpi") return ClusterLauncher::OpenMpi;
  if (launcher == "mpich" || launcher == "impi" || launcher == "mvapich")
    return ClusterLauncher::Hydra;
  if (launcher == "slurm") return ClusterLauncher::Slurm;
  return std::nullopt;
}

ClusterCommand cluster_command(ClusterLauncher launcher, const ClusterStart& start) {
  ClusterCommand out = launcher == ClusterLauncher::OpenMpi ? open_mpi(start)
                       : launcher == ClusterLauncher::Hydra ? hydra(start)
                                                            : slurm(start);
  out.words.insert(out.words.end(), start.extra.begin(), start.extra.end());
  out.words.insert(out.words.end(), start.agent.begin(), start.agent.end());
  return out;
}

std::optional<LabelledLine> split_label(ClusterLauncher launcher, std::string_view line) {
  std::string_view number = line;
  std::size_t begin = 0;
  if (launcher == ClusterLauncher::Slurm) {
    const std::size_t colon = line.find(": ");
    if (colon == std::string_view::npos) return std::nullopt;
    number = line.substr(0, colon);
    while (number.starts_with(' '))  // labels have the width of the largest one
      number.remove_prefix(1);
    begin = colon + 2;
  } else {
    const std::size_t close = line.find(']');
    if (!line.starts_with('[') || close == std::string_view::npos) return std::nullopt;
    number = line.substr(1, close - 1);
    begin = close + 1;
    if (launcher == ClusterLauncher::OpenMpi) {
      // The number of the job, and the name of the stream.
      const std::size_t comma = number.find(',');
      if (comma == std::string_view::npos || !digits(number.substr(0, comma))) return std::nullopt;
      number = number.substr(comma + 1);
      const std::string_view rest = line.substr(begin);
      if (!rest.starts_with("<std")) return std::nullopt;
      const std::size_t end = rest.find(">:");
      if (end == std::string_view::npos) return std::nullopt;
      begin += end + 2;
    } else if (line.substr(begin).starts_with(' ')) {
      ++begin;
    }
  }
  const std::optional<int> task = digits(number);
  if (!task) return std::nullopt;
  return LabelledLine{*task, line.substr(begin)};
}

HostPool slurm_allocation(std::optional<int> per_host) {
  const auto variable = [](const char* name) {
    const char* const value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  const std::string list = variable("SLURM_JOB_NODELIST");
  if (variable("SLURM_JOB_ID").empty() || list.empty()) return {};
  const std::vector<std::string> names = expand_hostlist(list);
  const std::string tasks = variable("SLURM_TASKS_PER_NODE");
  std::vector<int> counts(names.size(), per_host.value_or(1));
  if (!per_host && !tasks.empty()) counts = expand_counts(tasks);
  TESSERA_REQUIRE(
      counts.size() == names.size(),
      Config,
      fmt::format("SLURM_JOB_NODELIST={} has {} hosts and SLURM_TASKS_PER_NODE={} {} numbers",
                  list,
                  names.size(),
                  tasks,
                  counts.size()),
      "give the number of ranks of each host: -n 4");
  HostPool pool;
  for (std::size_t i = 0; i < names.size(); ++i) {
    TESSERA_REQUIRE(
        counts[i] >= 1 && counts[i] <= kMostSlots,
        Config,
        fmt::format("{} ranks on host {}: expected 1 to {}", counts[i], names[i], kMostSlots),
        "give the number of ranks of each host: -n 4");
    pool.push_back({names[i], {}});
    for (int slot = 0; slot < counts[i]; ++slot)
      pool.back().slots.push_back(slot);
  }
  return pool;
}

AgentSecret agent_secret() {
  const Secret drawn = random_secret();
  if (const char* const path = std::getenv(kSecretFile); path == nullptr || *path == '\0')
    return {drawn, to_hex(drawn)};
  const std::string text = kOfFile + to_hex(drawn);
  return {shared_secret(text), text};
}

std::string agent_variable(const std::string& secret_text, const std::string& master, int port) {
  return fmt::format("{} {} {}", secret_text, port, master);
}

std::string agent_job_key(int task) {
  return fmt::format("job of the agent of task {}", task);
}

std::optional<ClusterAgent> ClusterAgent::find() {
  const char* const value = std::getenv(kAgentVariable);
  if (value == nullptr) return std::nullopt;
  const std::vector<std::string> words = text::split(value, ' ');
  unsetenv(kAgentVariable);
  ClusterAgent agent;
  const std::optional<Secret> secret =
      words.size() == 3 ? described_secret(words[0]) : std::nullopt;
  const std::optional<int> port = words.size() == 3 ? digits(words[1]) : std::nullopt;
  TESSERA_REQUIRE(
      secret && port,
      Config,
      fmt::format("{} does not say where the coordinator of the job is", kAgentVariable),
      fmt::format("unset {}; tessera train --launcher sets it", kAgentVariable));
  agent.coordinator_.secret = *secret;
  agent.coordinator_.port = *port;
  agent.coordinator_.master = words[2];
  const std::optional<launch::Launcher> launcher = detect_launcher();
  TESSERA_REQUIRE(launcher.has_value(),
                  Config,
                  "the launcher does not set the index of this agent's task",
                  "start the hosts with --launcher ssh");
  agent.task_ = launcher->rank;
  forget_launcher();
  return agent;
}

AgentJob ClusterAgent::job() {
  const double deadline = now_s() + kJobSeconds;
  FrameClient client(coordinator_.master, coordinator_.port, 1, coordinator_.secret, deadline);
  const std::string key = agent_job_key(task_);
  client.send(FrameWriter(FrameType::Get).text(key));
  while (const std::optional<Frame> frame = client.receive(deadline)) {
    FrameReader body(*frame);
    if (frame->type != FrameType::Value || body.text() != key) continue;
    AgentJob job = parse_agent_job(body.text());
    // The jobs were written before the coordinator listened, and travel without the secret.
    job.part.port = coordinator_.port;
    job.part.secret = coordinator_.secret;
    coordinator_ = job.part;
    return job;
  }
  throw Error(
      Error::Kind::Comm,
      fmt::format(
          "the coordinator of the job, {}, has no part for task {}", coordinator_.master, task_),
      "see the message of the process that started the hosts");
}

bool ClusterAgent::report_end(int code, const std::optional<HostProblem>& problem) const {
  return hosts::report_end(coordinator_, code, problem);
}

}  // namespace tessera::hosts
