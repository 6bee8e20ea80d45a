// SPDX-License-Identifier: Apache-2.0
// What a rank of a launcher does for itself because no supervisor does it.
#pragma once

#include "tessera/launch/launch.h"

namespace tessera::launch {

/// From now on report_failure() and run_rank() call options.report. Once a process.
void report_from_ranks(const Options& options);
/// If the world broke, sees to it that one rank reports: this one if it is the first that still
/// can, and after a while another one, should those before it be stopped or stuck. Where this rank
/// broke the world and another one has the word, its own log gets the message at once.
/// Threads: any.
void report_failure(ControlPage& control, int local_rank);

}  // namespace tessera::launch
