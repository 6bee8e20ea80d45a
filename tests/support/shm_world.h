// SPDX-License-Identifier: Apache-2.0
// Worlds over the `shm` transport for tests: the ranks are threads of this process, each with its
// own mappings, or real processes.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include <sys/types.h>

#include "tessera/comm/world.h"

namespace tessera::test {

/// Address space of an arena: small enough for a sanitizer's map of the address space.
inline constexpr std::size_t kTestArenaBytes = std::size_t{1} << 30;

/// Memory files and a control page that threads and forked processes share.
class SharedFiles {
 public:
  explicit SharedFiles(int ranks);
  ~SharedFiles();
  SharedFiles(const SharedFiles&) = delete;
  SharedFiles& operator=(const SharedFiles&) = delete;
  [[nodiscard]] ControlPage& control() { return *control_; }
  [[nodiscard]] int ranks() const { return static_cast<int>(arenas_.size()); }
  std::unique_ptr<comm::World> world(int rank);

 private:
  std::vector<int> arenas_;
  ControlPage* control_ = nullptr;
};

/// Like comm::run_threads(), over `shm`.
void run_shm_threads(int ranks, const std::function<void(comm::World&)>& fn);

/// Forks one process a rank. Destruction kills and reaps those that are left.
class Processes {
 public:
  /// A child ends with 0, with 1 if an expectation of the test failed in it, or with exit_code() of
  /// the Error that fn threw, which also aborts the world.
  Processes(int ranks, const std::function<void(comm::World&)>& fn);
  ~Processes();
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;
  [[nodiscard]] ControlPage& control() { return files_.control(); }
  [[nodiscard]] pid_t pid(int rank) const { return pids_[static_cast<std::size_t>(rank)]; }
  /// Waits for the end of a rank: its exit code, or 128 + signal.
  int join(int rank);

 private:
  SharedFiles files_;
  std::vector<pid_t> pids_;
};

/// Runs fn on `ranks` processes and expects all to end with 0.
void run_processes(int ranks, const std::function<void(comm::World&)>& fn);

}  // namespace tessera::test
