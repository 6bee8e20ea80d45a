// SPDX-License-Identifier: Apache-2.0
// Aborts of a world, and detection of ranks that make no progress.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "tessera/base/control_page.h"
#include "tessera/base/error.h"

namespace tessera::comm {

/// Breaks the world with `error`, unless it is already broken (ControlPage::abort()).
void abort_world(ControlPage& control, int rank, const Error& error) noexcept;
/// Throws the error that broke the world, if it is broken.
void throw_if_aborted(const ControlPage& control);

/// Publishes on the control page what this rank posted last: the number of its operations and the
/// call.
void publish_operation(ControlPage& control, int rank, std::string_view what) noexcept;
/// Returns "rank 2 (step 7, operation 41: all_gather of 'weights h.3' at zero.cpp:88)".
std::string describe(ControlPage& control, int rank);

/// Measures how long the ranks that are waited for have made no progress. Threads: that of the
/// rank.
class Watchdog {
 public:
  Watchdog(ControlPage& control, double limit_s) : control_(control), limit_s_(limit_s) {}
  /// Returns whether none of `missing` has posted an operation, begun a step or shown life for the
  /// limit. Call it repeatedly during one wait. At most one second counts between two calls: if
  /// more time passed, this process was stopped, and possibly its peers as well.
  bool stalled(std::span<const int> missing);

 private:
  ControlPage& control_;
  double limit_s_;
  double last_look_ = -1, waited_s_ = 0;
  std::uint64_t signs_ = 0;
};

}  // namespace tessera::comm
