// SPDX-License-Identifier: Apache-2.0
// What a rank of a launcher does for itself because no supervisor does it.
#pragma once

#include "tessera/launch/launch.h"

namespace tessera::launch {

/// From now on report_failure() and run_rank() call `report`. Once a process.
void report_from_ranks(Report report);
/// If the world broke and this rank is the first that is not lost: reports, once a process.
/// Threads: any.
void report_failure(ControlPage& control, int local_rank);

}  // namespace tessera::launch
