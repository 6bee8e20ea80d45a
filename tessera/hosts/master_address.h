// SPDX-License-Identifier: Apache-2.0
// The place where the hosts of a job meet: the address of the host of rank 0, from flags or the
// environment.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::hosts {

/// The port if none is given, as torch's.
inline constexpr int kMasterPort = 29500;
/// The port may be taken, for example by torchrun's own store: rank 0 listens on the first free one
/// of this many, and the others try them in turn.
inline constexpr int kMasterPorts = 16;

/// The address of the host of rank 0, and the first of kMasterPorts ports.
struct MasterAddress {
  std::string address;
  int port = kMasterPort;
  std::string source;  ///< "MASTER_ADDR", "--master_addr", "SLURM_STEP_NODELIST"
};

/// Returns where to meet: `address` and `port` if they are given, otherwise from MASTER_ADDR and
/// MASTER_PORT, AzureML's AZ_BATCH_MASTER_NODE or AZ_BATCHAI_MPI_MASTER_NODE, the first host of
/// Slurm's step or allocation (the port then depends on SLURM_JOB_ID), of SageMaker's SM_HOSTS, or
/// of LSF's LSB_MCPU_HOSTS; nothing if none of them is set. Throws Error{Config} for a value that
/// is not an address or port.
std::optional<MasterAddress> find_master_address(const std::string& address = "",
                                                 std::optional<int> port = std::nullopt);

/// Reads the list of hosts of SageMaker, `["algo-1","algo-2"]`. Throws Error{Config}.
std::vector<std::string> sagemaker_hosts(std::string_view text);

}  // namespace tessera::hosts
