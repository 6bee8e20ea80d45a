// SPDX-License-Identifier: Apache-2.0
// The meeting of a job's hosts if another launcher started the ranks: rank 0 is the coordinator
// (coordinator.h), and local rank 0 of every host keeps the connection to it.
#pragma once

#include <memory>

#include "tessera/hosts/fact.h"
#include "tessera/hosts/host_part.h"
#include "tessera/hosts/run_folder_check.h"
#include "tessera/launch/launch.h"

namespace tessera::hosts {

/// Returns the part of a launcher's job that this host runs. Throws Error{Config} if the
/// environment does not say where the hosts meet.
std::shared_ptr<const HostPart> part_of(const launch::Launcher& launcher);

/// On local rank 0: becomes the coordinator if it is rank 0, then waits for all hosts. Logs a
/// warning if the secret of the job can be guessed. The destructor of the connection tells the
/// other hosts that this one has ended; that of rank 0 waits until all others have. Signals reach
/// the ranks through their launcher, and start() never calls `on_stop`. Throws as Coordinator and
/// CoordinatorClient do; the coordinator then answers until the process ends. Call it once per
/// process.
std::unique_ptr<launch::JobConnection> join_hosts(const HostPart& part,
                                                  const FactsOfHost& facts,
                                                  double timeout_s,
                                                  const RunFolderCheck& folder);

}  // namespace tessera::hosts
