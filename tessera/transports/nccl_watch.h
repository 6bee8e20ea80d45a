// SPDX-License-Identifier: Apache-2.0
// Ends the operations of NCCL that will never be complete, because a rank failed or does not come.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tessera/base/control_page.h"

namespace c10 {
struct Event;
}

namespace tessera::transports {

/// A thread that looks at the operations of one rank. A host that waits for a stream of a device
/// cannot be reached, so this thread aborts the communicators, which lets the stream go on: when
/// the world is broken, or when none of the other ranks of an operation has posted an operation,
/// begun a step or shown life for the limit; then it breaks the world with an error that names both
/// ranks and the call sites. Time in which the operation waits for this rank's own computation does
/// not count. Threads: the functions are called from the rank's thread.
class NcclWatch {
 public:
  /// `control`: of the world, or nullptr; then only time counts. `abort_all` aborts the
  /// communicators; the thread calls it once.
  NcclWatch(int rank, ControlPage* control, std::function<void()> abort_all);
  ~NcclWatch();
  NcclWatch(const NcclWatch&) = delete;
  NcclWatch& operator=(const NcclWatch&) = delete;

  /// An operation with other ranks begins on a lane, of which it is the newest.
  void begin(const void* lane, std::string operation, std::vector<int> others);
  /// It was posted, after `ready` on the rank's own computation; `done` follows it.
  void posted(const void* lane,
              std::shared_ptr<c10::Event> ready,
              std::shared_ptr<c10::Event> done);
  /// Throws the error with which the world, or this watch, ended the operations.
  void throw_if_broken() const;
  /// See Transport::set_stall_limit().
  void set_limit(double seconds);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera::transports
