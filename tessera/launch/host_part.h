// SPDX-License-Identifier: Apache-2.0
// The part of a job of several hosts that one host runs.
#pragma once

#include <string>
#include <vector>

#include "tessera/launch/copy_client.h"
#include "tessera/launch/secret.h"

namespace tessera::launch {

/// The copy servers of a job (copy_server.h).
struct CopyPart {
  std::vector<CopyPlace> places;  ///< of all hosts that have one
  int own = -1, neighbour = -1;   ///< of this host and the next one; -1: no copies are made
  CopySet from;                   ///< the complete set with which the ranks begin, if there is one
};

/// The ranks of a host are contiguous. Equal on all ranks of the host.
struct HostPart {
  int host = 0, hosts = 1;  ///< index of this host
  int first_rank = 0, local_ranks = 1, world_size = 1;
  std::string name;    ///< name of this host, for messages
  std::string master;  ///< address of the head (head.h)
  int port = 0;        ///< port on which the head listens, or the first of kMasterPorts
  Secret secret;
  /// True if the head runs in the process of rank 0 instead of the process that started the hosts.
  bool head_in_rank_0 = false;
  /// True if an agent runs the part: the process that started it tells the user how the job ended.
  bool is_agent = false;
  /// Number of times that the ranks of the job were started before, because some were lost.
  int generation = 0;
  CopyPart copies;
};

}  // namespace tessera::launch
