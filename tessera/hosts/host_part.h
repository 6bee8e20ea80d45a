// SPDX-License-Identifier: Apache-2.0
// The part of a job of several hosts that one host runs.
#pragma once

#include <string>
#include <vector>

#include "tessera/hosts/copy_client.h"
#include "tessera/hosts/secret.h"
#include "tessera/launch/job_connection.h"

namespace tessera::hosts {

/// The copy servers of a job (copy_server.h).
struct CopyPart {
  std::vector<CopyPlace> places;  ///< of all hosts that have one
  int own = -1, neighbour = -1;   ///< of this host and the next one; -1: no copies are made
  CopySet from;                   ///< the complete set with which the ranks begin, if there is one
};

/// The ranks of this host, how it reaches the others, and the copies of the state that it keeps.
/// Equal on all ranks of the host.
struct HostPart : launch::LocalRanks {
  std::string master;  ///< address of the coordinator (coordinator.h)
  int port = 0;        ///< port on which the coordinator listens, or the first of kMasterPorts
  Secret secret;
  /// True if the coordinator runs in the process of rank 0 instead of the process that started the
  /// hosts.
  bool head_in_rank_0 = false;
  /// Number of times that the ranks of the job were started before, because some were lost.
  int generation = 0;
  CopyPart copies;
};

}  // namespace tessera::hosts
