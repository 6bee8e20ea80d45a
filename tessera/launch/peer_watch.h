// SPDX-License-Identifier: Apache-2.0
// Ranks without a supervisor watch each other.
#pragma once

#include "tessera/base/control_page.h"
#include "tessera/launch/launch.h"

namespace tessera::launch {

/// Starts a thread that, until the process ends, waits for the other local ranks' processes (their
/// numbers stand on the page). One that ends without having said how breaks the world. Once the
/// world is broken this process has options.grace_s to leave; then the thread reports, if nobody
/// else does (run_rank.h), and ends it with the error's exit code, so that nothing of a broken job
/// stays. Error{Environment} where the thread cannot be had.
void watch_peers(ControlPage& control, int rank, const Options& options);

}  // namespace tessera::launch
