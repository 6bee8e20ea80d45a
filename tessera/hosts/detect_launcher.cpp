// SPDX-License-Identifier: Apache-2.0
#include "tessera/hosts/detect_launcher.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include <fmt/core.h>
#include <unistd.h>

#include "tessera/base/error.h"
#include "tessera/base/process.h"
#include "tessera/hosts/hostfile.h"
#include "tessera/hosts/master_address.h"
#include "tessera/launch/cgroup.h"
#include "tessera/launch/launch.h"
#include "tessera/launch/machine.h"

namespace tessera::hosts {
namespace {

/// Names of the variables of one launcher; nullptr if it has none. `needed` must be set in addition
/// to rank and size. The value of each variable of `job` identifies one job of this launcher at a
/// time; a port does so only if the launcher itself listens on it.
struct Names {
  const char* launcher;
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
  const char* needed;
  const char* host;   // index of this host
  const char* hosts;  // number of hosts
  std::array<const char*, 2> job;
};

constexpr const char* kSlurmStep = "SLURM_STEP_ID";
// Tasks of every host of a step, and of every host of the allocation.
constexpr std::array<const char*, 2> kSlurmTasks = {"SLURM_STEP_TASKS_PER_NODE",
                                                    "SLURM_TASKS_PER_NODE"};

// In order of precedence. Slurm's variables are set in every shell of an allocation; they describe
// this process only if a step is set.
constexpr Names kLaunchers[] = {
    {"torchrun",
     "RANK",
     "WORLD_SIZE",
     "LOCAL_RANK",
     "LOCAL_WORLD_SIZE",
     nullptr,
     "GROUP_RANK",
     "GROUP_WORLD_SIZE",
     {"MASTER_PORT", "TORCHELASTIC_RUN_ID"}},
    {"deepspeed",
     "RANK",
     "WORLD_SIZE",
     "LOCAL_RANK",
     "LOCAL_SIZE",
     nullptr,
     "CROSS_RANK",
     "CROSS_SIZE",
     {}},
    {"mpirun",
     "OMPI_COMM_WORLD_RANK",
     "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE",
     nullptr,
     nullptr,
     nullptr,
     {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"}},
    // Variables of the step; SLURM_NTASKS may be that of the allocation.
    {"srun",
     "SLURM_PROCID",
     "SLURM_STEP_NUM_TASKS",
     "SLURM_LOCALID",
     nullptr,
     kSlurmStep,
     "SLURM_NODEID",
     "SLURM_STEP_NUM_NODES",
     {kSlurmStep}},
    {"srun",
     "SLURM_PROCID",
     "SLURM_NTASKS",
     "SLURM_LOCALID",
     nullptr,
     kSlurmStep,
     "SLURM_NODEID",
     "SLURM_STEP_NUM_NODES",
     {kSlurmStep}},
    // LSF's launcher.
    {"jsrun",
     "JSM_NAMESPACE_RANK",
     "JSM_NAMESPACE_SIZE",
     "JSM_NAMESPACE_LOCAL_RANK",
     "JSM_NAMESPACE_LOCAL_SIZE",
     nullptr,
     nullptr,
     nullptr,
     {"LSB_JOBID", "LS_JOBPID"}},
    {"mpiexec",
     "PMI_RANK",
     "PMI_SIZE",
     "MPI_LOCALRANKID",
     "MPI_LOCALNRANKS",
     nullptr,
     nullptr,
     nullptr,
     {}},
    {"mpirun_rsh",
     "MV2_COMM_WORLD_RANK",
     "MV2_COMM_WORLD_SIZE",
     "MV2_COMM_WORLD_LOCAL_RANK",
     "MV2_COMM_WORLD_LOCAL_SIZE",
     nullptr,
     nullptr,
     nullptr,
     {}},
};
// If only rank and size of these launchers are set, every rank would train alone.
constexpr std::array<std::string_view, 5> kRefusedHalves = {
    "torchrun", "mpirun", "jsrun", "mpiexec", "mpirun_rsh"};

const char* variable(const char* name) {
  const char* const value = name == nullptr ? nullptr : std::getenv(name);
  return value != nullptr && *value != '\0' ? value : nullptr;
}

int number(const char* name) {
  const char* const text = std::getenv(name);
  int value = 0;
  const char* const end = text + std::strlen(text);
  const auto [stop, error] = std::from_chars(text, end, value);
  TESSERA_REQUIRE(error == std::errc() && stop == end && value >= 0,
                  Config,
                  fmt::format("{}={} in the environment is not a number of ranks", name, text),
                  fmt::format("start through the launcher, or unset {}", name));
  return value;
}

// Steps from this number on are Slurm's own: the batch script, the shell of an interactive
// allocation.
constexpr std::uint64_t kSlurmOwnSteps = 0xfffffff0;

bool is_slurms_own_step(const char* step) {
  std::uint64_t number = 0;
  const auto [stop, error] = std::from_chars(step, step + std::strlen(step), number);
  return error == std::errc() && *stop == '\0' && number >= kSlurmOwnSteps;
}

bool is_set(const Names& names) {
  for (const char* name :
       {names.rank, names.size, names.local_rank, names.local_size, names.needed}) {
    if (name != nullptr && variable(name) == nullptr) return false;
  }
  return names.needed != kSlurmStep || !is_slurms_own_step(variable(kSlurmStep));
}

[[noreturn]] void contradiction(const std::string& values, const std::string& fix) {
  throw Error(Error::Kind::Config, "the environment contradicts itself: " + values, fix);
}

void require_below(const char* rank_name, int rank, const char* size_name, int size) {
  if (rank < size) return;
  contradiction(
      fmt::format("{}={} with {}={}", rank_name, rank, size_name, size),
      fmt::format("ranks go from 0 to {}; unset the variables or correct them", size - 1));
}

/// Returns the ranks of this host under a launcher that says only how many every host has; nothing
/// if it does not say so.
std::optional<int> slurm_tasks(const Names& names) {
  if (names.needed != kSlurmStep || variable(names.host) == nullptr) return std::nullopt;
  for (const char* name : kSlurmTasks) {
    if (variable(name) == nullptr) continue;
    const std::vector<int> counts = expand_counts(variable(name));
    const auto host = static_cast<std::size_t>(number(names.host));
    if (host >= counts.size()) {
      contradiction(fmt::format("{}={} with {}={}", names.host, host, name, variable(name)),
                    "start through srun, or unset the variables");
    }
    return counts[host];
  }
  return std::nullopt;
}

int local_size_of(const Names& names, const launch::Launcher& found) {
  if (names.local_size != nullptr) return number(names.local_size);
  if (const std::optional<int> tasks = slurm_tasks(names)) return *tasks;
  const bool hosts = variable(names.hosts) != nullptr && number(names.hosts) > 1;
  // Differing local ranks reveal several hosts.
  if (hosts || found.local_rank != found.rank) {
    contradiction(
        fmt::format("{}={} with {}={}, but neither {} nor {} say how many ranks this host has",
                    names.rank,
                    found.rank,
                    names.local_rank,
                    found.local_rank,
                    kSlurmTasks[0],
                    kSlurmTasks[1]),
        "start through srun, which sets them");
  }
  return found.world_size;
}

void require_sizes_agree(const Names& names, const launch::Launcher& found) {
  if (names.local_size != nullptr && found.local_world_size > found.world_size) {
    contradiction(fmt::format("{}={} with {}={}",
                              names.local_size,
                              found.local_world_size,
                              names.size,
                              found.world_size),
                  "unset the variables or correct them");
  }
  if (variable(names.hosts) == nullptr) return;
  const int hosts = number(names.hosts);
  if ((hosts > 1) != found.several_hosts()) {
    contradiction(fmt::format("{}={} with {} ranks on this host of {}={}",
                              names.hosts,
                              hosts,
                              found.local_world_size,
                              names.size,
                              found.world_size),
                  "unset the variables or correct them");
  }
  if (variable(names.host) != nullptr)
    require_below(names.host, number(names.host), names.hosts, std::max(hosts, 1));
}

bool names_its_job(const Names& names) {
  return std::any_of(names.job.begin(), names.job.end(), [](const char* name) {
    return variable(name) != nullptr;
  });
}

/// Returns a string that identifies this job among the jobs of the same user on this host: its
/// identifiers or, without any, the launcher's process, regardless of the shells between it and
/// this process.
std::string job_of(const Names& names) {
  std::string job = names.launcher;
  for (const char* name : {"MASTER_ADDR",
                           "MASTER_PORT",
                           "TORCHELASTIC_RUN_ID",
                           "TORCHELASTIC_RESTART_COUNT",
                           "SLURM_JOB_ID",
                           kSlurmStep,
                           "LSB_JOBID",
                           "PMIX_NAMESPACE",
                           "OMPI_MCA_ess_base_jobid"}) {
    if (const char* const value = variable(name)) job += fmt::format(" {}={}", name, value);
  }
  if (names_its_job(names)) return job;
  return fmt::format("{} parent={}", job, ancestor_without(names.local_rank, getpid()));
}

launch::Launcher read(const Names& names) {
  launch::Launcher found;
  found.name = names.launcher;
  found.rank = number(names.rank);
  found.world_size = number(names.size);
  found.local_rank = number(names.local_rank);
  require_below(names.rank, found.rank, names.size, found.world_size);
  found.local_world_size = local_size_of(names, found);
  if (names.local_size != nullptr)
    require_below(names.local_rank, found.local_rank, names.local_size, found.local_world_size);
  require_sizes_agree(names, found);
  found.job = job_of(names);
  return found;
}

/// Returns whether `other` is set although `found` determines the ranks, and has different values.
bool disagrees(const Names& other, const launch::Launcher& found) {
  return is_set(other) && other.launcher != found.name &&
         (number(other.rank) != found.rank || number(other.size) != found.world_size);
}

/// One process on each host, or in each container, that knows only its rank and the meeting point:
/// as Kubernetes starts them (PyTorchJob), or by hand with torch's variables.
std::optional<launch::Launcher> one_rank_per_host() {
  const Names& names = kLaunchers[0];
  for (const char* name : {names.rank, names.size, "MASTER_ADDR", "MASTER_PORT"}) {
    if (variable(name) == nullptr) return std::nullopt;
  }
  if (variable(names.local_rank) != nullptr || variable(names.local_size) != nullptr)
    return std::nullopt;
  launch::Launcher found;
  found.name = variable("KUBERNETES_SERVICE_HOST") != nullptr ? "Kubernetes" : "RANK, WORLD_SIZE";
  found.rank = number(names.rank);
  found.world_size = number(names.size);
  require_below(names.rank, found.rank, names.size, found.world_size);
  if (found.world_size < 2) return std::nullopt;
  found.job = fmt::format("{} rank {}", job_of(names), found.rank);
  return found;
}

/// One process on each host of SageMaker, whose variables name the hosts.
std::optional<launch::Launcher> sagemaker() {
  const char* const hosts = variable("SM_HOSTS");
  const char* const current = variable("SM_CURRENT_HOST");
  if (hosts == nullptr || current == nullptr) return std::nullopt;
  const std::vector<std::string> names = sagemaker_hosts(hosts);
  if (names.size() < 2) return std::nullopt;
  const auto own = std::find(names.begin(), names.end(), current);
  if (own == names.end())
    contradiction(fmt::format("SM_CURRENT_HOST={} with SM_HOSTS={}", current, hosts), "");
  launch::Launcher found;
  found.name = "SageMaker";
  found.rank = static_cast<int>(own - names.begin());
  found.world_size = static_cast<int>(names.size());
  found.job = fmt::format("SageMaker {} rank {}", hosts, found.rank);
  return found;
}

/// Throws if rank and size are set without the local ones: every rank would train alone.
void refuse_half_of(const Names& names) {
  if (variable(names.rank) == nullptr || variable(names.size) == nullptr) return;
  const int rank = number(names.rank), size = number(names.size);
  if (size < 2) return;
  std::string missing;
  for (const char* name : {names.local_rank, names.local_size}) {
    if (variable(name) == nullptr)
      missing += fmt::format("{}{}", missing.empty() ? "" : " and ", name);
  }
  throw Error(
      Error::Kind::Config,
      fmt::format("the environment says {}={} and {}={}, but not {}",
                  names.rank,
                  rank,
                  names.size,
                  size,
                  missing),
      fmt::format("set {} for every rank, as {} does; to train on a single rank: unset {} {}",
                  missing,
                  names.launcher,
                  names.rank,
                  names.size));
}

}  // namespace

std::optional<launch::Launcher> detect_launcher() {
  std::optional<launch::Launcher> found;
  for (const Names& names : kLaunchers) {
    if (!found && is_set(names)) found = read(names);
  }
  if (!found) found = one_rank_per_host();
  if (!found) found = sagemaker();
  if (found) {
    for (const Names& names : kLaunchers) {
      if (disagrees(names, *found)) found->ignored.emplace_back(names.launcher);
    }
    found->ignored.erase(std::unique(found->ignored.begin(), found->ignored.end()),
                         found->ignored.end());
    return found;
  }
  for (const Names& names : kLaunchers) {
    if (std::ranges::find(kRefusedHalves, names.launcher) != kRefusedHalves.end())
      refuse_half_of(names);
  }
  return std::nullopt;
}

bool is_bound() {
  const auto names = std::ranges::find_if(kLaunchers, is_set);
  if (names == std::end(kLaunchers)) return false;
  const auto launcher = static_cast<int>(ancestor_without(names->local_rank, getpid()));
  return launcher > 0 && launch::affinity_cores().size() < launch::affinity_cores(launcher).size();
}

int threads_per_rank(int local_ranks) {
  if (!is_bound()) return launch::threads_per_rank(local_ranks);
  const auto quota = launch::Cgroup().cpu_quota();  // that of all ranks
  return launch::usable_cores(launch::affinity_cores().size(),
                              quota ? std::optional(*quota / std::max(1, local_ranks)) : quota);
}

void forget_launcher() {
  for (const Names& names : kLaunchers) {
    for (const char* name : {names.rank, names.size, names.local_rank, names.local_size}) {
      if (name != nullptr) unsetenv(name);
    }
  }
}

}  // namespace tessera::hosts
