// SPDX-License-Identifier: Apache-2.0
// How a rank sleeps until a peer has news for it, and how a peer wakes it.
#pragma once

#include <cstdint>

#include "tessera/base/control_page.h"

namespace tessera::comm {

/// Sleeping of one rank. The pattern, which loses no news:
///
///   Nap nap(control, rank, peer);     // from here on ring_if_waiting() rings
///   if (!news()) nap.sleep(0.1);
///
/// Whoever makes news stores it with sequential consistency and calls ring_if_waiting() after it.
/// Threads: the rank's own.
class Nap {
 public:
  /// `peer`: the rank that is waited for, told on the control page.
  Nap(ControlPage& control, int rank, int peer) noexcept;
  ~Nap();
  Nap(const Nap&) = delete;
  Nap& operator=(const Nap&) = delete;

  /// Until the doorbell has rung since construction, or for at most `seconds`.
  void sleep(double seconds) noexcept;

 private:
  RankLine& line_;
  std::uint32_t seen_;
};

/// Wakes `rank` if it naps. A system call only then.
void ring_if_waiting(ControlPage& control, int rank) noexcept;

}  // namespace tessera::comm
