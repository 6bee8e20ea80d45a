// SPDX-License-Identifier: Apache-2.0
// What breaks a world and what tells of it: aborts, and ranks that show no sign of life.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "tessera/base/control_page.h"
#include "tessera/base/error.h"

namespace tessera::comm {

/// Breaks the world with `error`, unless somebody did so before (ControlPage::abort()).
void abort_world(ControlPage& control, int rank, const Error& error) noexcept;
/// Throws the error of whoever broke the world, if it is broken.
void throw_if_aborted(const ControlPage& control);

/// Says on the control page what this rank posted last: the count of its operations and the call.
void publish_operation(ControlPage& control, int rank, std::string_view what) noexcept;
/// "rank 2 (step 7, operation 41: all_gather of 'weights h.3' at zero.cpp:88)".
std::string describe(ControlPage& control, int rank);

/// Measures how long the ranks that somebody waits for have shown no sign of life.
/// Threads: the rank's own.
class Watchdog {
 public:
  Watchdog(ControlPage& control, double limit_s) : control_(control), limit_s_(limit_s) {}
  /// Whether none of `missing` has posted anything, begun a step or shown life for the limit. To be
  /// asked again and again during one wait: between two questions at most a second counts, as more
  /// of it passed for this process stopped, and its peers perhaps with it.
  bool stalled(std::span<const int> missing);

 private:
  ControlPage& control_;
  double limit_s_;
  double last_look_ = -1, waited_s_ = 0;
  std::uint64_t signs_ = 0;
};

}  // namespace tessera::comm
