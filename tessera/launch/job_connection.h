// SPDX-License-Identifier: Apache-2.0
// The ranks of a job that one host runs, and the connection of this host to the others. hosts/
// implements the connection; a job on one host has none.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "tessera/base/control_page.h"
#include "tessera/base/error.h"

namespace tessera::launch {

/// The ranks that a host runs in a job of several hosts. They are contiguous.
struct LocalRanks {
  int host = 0, hosts = 1;  ///< index of this host
  int first_rank = 0, local_ranks = 1, world_size = 1;
  std::string name;  ///< name of this host, for messages
  /// True if an agent runs the ranks: the process that started it reports how the job ended.
  bool is_agent = false;
};

/// The connection of this host to the other hosts of its job. It keeps the lines of their ranks on
/// the control page up to date, and passes the end of the world on in both directions. The
/// destructor notifies the others that the ranks of this host have ended, and may wait for them.
class JobConnection {
 public:
  JobConnection() = default;
  virtual ~JobConnection() = default;
  JobConnection(const JobConnection&) = delete;
  JobConnection& operator=(const JobConnection&) = delete;

  /// Begins to keep `control`, which has a line for every rank of the job and must outlive this
  /// object. `on_stop` is called, in another thread, for each signal that asks the job to stop.
  virtual void start(ControlPage& control, std::function<void(int signal)> on_stop) = 0;
  /// Tells the process that started the hosts, when this object is destroyed, how the first rank
  /// of the job failed.
  virtual void report(const Error& failure) = 0;
};

/// Meets the other hosts. Returns when all have arrived and agree; starts no thread in a process
/// that forks its ranks. Throws Error.
using ConnectToJob = std::function<std::unique_ptr<JobConnection>()>;

}  // namespace tessera::launch
