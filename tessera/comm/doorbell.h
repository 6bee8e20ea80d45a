// SPDX-License-Identifier: Apache-2.0
// Lets a rank sleep until a peer has an event for it, and lets the peer wake it.
#pragma once

#include <cstdint>

#include "tessera/base/control_page.h"

namespace tessera::comm {

/// The sleep of one rank on its doorbell. This pattern never misses an event:
///
///   DoorbellWait wait(control, rank, peer);  // from here on ring_if_waiting() rings
///   if (!ready()) wait.sleep(0.1);
///
/// The peer stores the event with sequential consistency and calls ring_if_waiting() after it.
/// Threads: that of the rank.
class DoorbellWait {
 public:
  /// `peer`: the rank that is waited for; it is published on the control page.
  DoorbellWait(ControlPage& control, int rank, int peer) noexcept;
  ~DoorbellWait();
  DoorbellWait(const DoorbellWait&) = delete;
  DoorbellWait& operator=(const DoorbellWait&) = delete;

  /// Sleeps until the doorbell has rung since construction, or for at most `seconds`.
  void sleep(double seconds) noexcept;

 private:
  RankLine& line_;
  std::uint32_t seen_;
};

/// Wakes `rank` if it sleeps. Makes a system call only in that case.
void ring_if_waiting(ControlPage& control, int rank) noexcept;

}  // namespace tessera::comm
