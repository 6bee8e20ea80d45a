// SPDX-License-Identifier: Apache-2.0
// Detection of launchers that have already started the ranks, by their environment variables.
#pragma once

#include <optional>

#include "tessera/launch/launch.h"

namespace tessera::hosts {

/// Reads the variables of torchrun, DeepSpeed, Open MPI, Slurm, LSF's jsrun, MPICH and Intel MPI,
/// MVAPICH, in this order; then RANK and WORLD_SIZE with MASTER_ADDR and MASTER_PORT alone, as
/// Kubernetes sets them, and SageMaker's SM_HOSTS: one rank on each host. Returns nothing if there
/// are none. Contradictions are Error{Config} with both values, and so are RANK with a WORLD_SIZE,
/// or PMI_RANK with a PMI_SIZE, above 1 that do not say which ranks share a host: every rank would
/// train alone.
std::optional<launch::Launcher> detect_launcher();
/// Returns whether a launcher gave the processors in this process's mask to this rank alone: they
/// are fewer than those of the launcher's own process. False without a launcher.
bool is_bound();
/// Returns the number of threads for each of `local_ranks`: the usable processors divided among
/// them, or all of them in the mask of a rank that a launcher has bound; at least 1.
int threads_per_rank(int local_ranks);
/// Removes the variables that detect_launcher() reads of each launcher's ranks from the environment
/// of this process.
void forget_launcher();

}  // namespace tessera::hosts
