// SPDX-License-Identifier: Apache-2.0
// Detection of launchers that have already started the ranks, by their environment variables.
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
#include "tessera/launch/launch.h"

namespace tessera::launch {
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
  const char* nodes;  // number of hosts
  std::array<const char*, 2> job;
};

constexpr const char* kSlurmStep = "SLURM_STEP_ID";

// In order of precedence. Slurm's variables are set in every shell of an allocation; they describe
// this process only if a step is set.
constexpr Names kLaunchers[] = {
    {"torchrun",
     "RANK",
     "WORLD_SIZE",
     "LOCAL_RANK",
     "LOCAL_WORLD_SIZE",
     nullptr,
     "GROUP_WORLD_SIZE",
     {"MASTER_PORT", "TORCHELASTIC_RUN_ID"}},
    {"deepspeed", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_SIZE", nullptr, "CROSS_SIZE", {}},
    {"mpirun",
     "OMPI_COMM_WORLD_RANK",
     "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE",
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
     "SLURM_STEP_NUM_NODES",
     {kSlurmStep}},
    {"srun",
     "SLURM_PROCID",
     "SLURM_NTASKS",
     "SLURM_LOCALID",
     nullptr,
     kSlurmStep,
     "SLURM_STEP_NUM_NODES",
     {kSlurmStep}},
    {"mpiexec", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", nullptr, nullptr, {}},
    {"mpirun_rsh",
     "MV2_COMM_WORLD_RANK",
     "MV2_COMM_WORLD_SIZE",
     "MV2_COMM_WORLD_LOCAL_RANK",
     "MV2_COMM_WORLD_LOCAL_SIZE",
     nullptr,
     nullptr,
     {}},
};

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

void require_below(const char* rank_name, int rank, const char* size_name, int size) {
  TESSERA_REQUIRE(
      rank < size,
      Config,
      fmt::format(
          "the environment contradicts itself: {}={} with {}={}", rank_name, rank, size_name, size),
      fmt::format("ranks go from 0 to {}; unset the variables or correct them", size - 1));
}

void require_one_host(const Names& names, const Launcher& found) {
  const bool hosts = variable(names.nodes) != nullptr && number(names.nodes) > 1;
  // If a launcher does not set local sizes, differing local ranks reveal several hosts.
  const bool elsewhere =
      found.local_world_size != found.world_size || found.local_rank != found.rank;
  TESSERA_REQUIRE(
      !hosts && !elsewhere,
      Unsupported,
      fmt::format("{} started {} ranks on several hosts (this is rank {}, local rank {} of {}): "
                  "several hosts are not built yet",
                  found.name,
                  found.world_size,
                  found.rank,
                  found.local_rank,
                  found.local_world_size),
      "start all ranks on one host");
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
                           "PMIX_NAMESPACE",
                           "OMPI_MCA_ess_base_jobid"}) {
    if (const char* const value = variable(name)) job += fmt::format(" {}={}", name, value);
  }
  if (names_its_job(names)) return job;
  return fmt::format("{} parent={}", job, ancestor_without(names.local_rank, getpid()));
}

Launcher read(const Names& names) {
  Launcher found;
  found.name = names.launcher;
  found.rank = number(names.rank);
  found.world_size = number(names.size);
  found.local_rank = number(names.local_rank);
  found.local_world_size =
      names.local_size == nullptr ? found.world_size : number(names.local_size);
  require_below(names.rank, found.rank, names.size, found.world_size);
  if (names.local_size != nullptr) {
    require_below(names.local_rank, found.local_rank, names.local_size, found.local_world_size);
    TESSERA_REQUIRE(found.local_world_size <= found.world_size,
                    Config,
                    fmt::format("the environment contradicts itself: {}={} with {}={}",
                                names.local_size,
                                found.local_world_size,
                                names.size,
                                found.world_size),
                    "unset the variables or correct them");
  }
  require_one_host(names, found);
  found.job = job_of(names);
  return found;
}

/// Rejects a rank and a size without the local ones, as Kubernetes sets them for torch: every rank
/// would train alone.
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

std::optional<Launcher> detect_launcher() {
  for (const Names& names : kLaunchers) {
    if (is_set(names)) return read(names);
  }
  refuse_half_of(kLaunchers[0]);
  return std::nullopt;
}

}  // namespace tessera::launch
