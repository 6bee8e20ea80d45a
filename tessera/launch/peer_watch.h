// SPDX-License-Identifier: Apache-2.0
// Mutual supervision of ranks that have no supervisor process.
#pragma once

#include "tessera/base/control_page.h"
#include "tessera/launch/launch.h"

namespace tessera::launch {

/// Starts a thread that waits, until the process ends, for the processes of the other local ranks
/// (their process numbers are on the control page). A process that ends without having set its
/// state breaks the world. Once the world is broken, this process has options.grace_s to leave;
/// then the thread reports, unless another rank does (run_rank.h), and ends the process with the
/// exit code of the error, so that nothing of a broken job remains. Throws Error{Environment} if
/// the thread cannot be created.
void watch_peers(ControlPage& control, int rank, const Options& options);

}  // namespace tessera::launch
