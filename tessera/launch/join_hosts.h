// SPDX-License-Identifier: Apache-2.0
// The meeting of a job's hosts if another launcher started the ranks: rank 0 is the head (head.h),
// and local rank 0 of every host keeps the connection to it.
#pragma once

#include <cstdint>
#include <memory>

#include "tessera/base/control_page.h"
#include "tessera/launch/host_part.h"
#include "tessera/launch/launch.h"

namespace tessera::launch {

/// Returns the part of a launcher's job that this host runs. Throws Error{Config} if the
/// environment does not say where the hosts meet.
std::shared_ptr<const HostPart> part_of(const Launcher& launcher);

/// On local rank 0: becomes the head if it is rank 0, then waits for all hosts. Logs a warning if
/// the secret of the job can be guessed. Throws as Head and PageMirror do. Call it once per
/// process.
void join_hosts(const HostPart& part,
                const FactsOfHost& facts,
                double timeout_s,
                const RunFolderCheck& folder);
/// On local rank 0, after join_hosts(): begins to keep the lines of other hosts on `control`, which
/// must stay mapped.
void mirror_page(ControlPage& control);
/// Tells the other hosts that this rank's host has ended; rank 0 waits until all others have. Does
/// nothing where join_hosts() was not called.
void leave_hosts();

}  // namespace tessera::launch
