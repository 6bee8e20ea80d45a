// SPDX-License-Identifier: Apache-2.0
// Duties of a rank of a launcher, which has no supervisor process.
#pragma once

#include <memory>

#include "tessera/base/error.h"
#include "tessera/launch/job_connection.h"
#include "tessera/launch/launch.h"

namespace tessera::launch {

/// Makes report_failure() and run_rank() call options.report from now on. Call it once per process.
void report_from_ranks(const Options& options);
/// On local rank 0: keeps the connection to the other hosts until run_rank() ends. Call it once per
/// process.
void keep_connection(std::unique_ptr<JobConnection> connection);
/// The two ends of run_rank(), for a rank whose work is a series of calls into the library:
/// begin_rank() says on the control page that the rank runs, and returns that page, or nullptr for
/// a single rank without one. end_rank() says how it ended, reports a failure, and returns the exit
/// code. Call each once per process.
ControlPage* begin_rank(const RankInfo& rank);
int end_rank(const RankInfo& rank, ControlPage* control, int code);
/// Breaks the world with this error, which the other ranks then throw.
void break_world(const RankInfo& rank, ControlPage* control, const Error& error);
/// If the world is broken, ensures that one rank of this host reports the failure: this one if it
/// is the first that still can; after a while another one, in case the earlier ranks are stopped or
/// stuck. If this rank broke the world and another one reports, the message is also written to the
/// log of this rank at once. Of several hosts that of rank 0 reports; the others do only if rank 0,
/// or its host, is the cause. Threads: any.
void report_failure(ControlPage& control, int rank);
/// Returns the signal that asked this job to stop at once (Options::stops_at_once), as the ranks of
/// this host have seen it; 0: none. Threads: any.
int signal_that_ends(const ControlPage& control) noexcept;

}  // namespace tessera::launch
