// SPDX-License-Identifier: Apache-2.0
#include "tessera/comm/doorbell.h"

#include <ctime>

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace tessera::comm {

// The waiter stores waiting_for and then loads the event; the peer stores the event and then loads
// waiting_for. All four are sequentially consistent, so that at least one side sees the other.
DoorbellWait::DoorbellWait(ControlPage& control, int rank, int peer) noexcept
    : line_(control.line(rank)), seen_(line_.doorbell.load()) {
  line_.waiting_for.store(static_cast<std::uint32_t>(peer) + 1);
}

DoorbellWait::~DoorbellWait() {
  line_.waiting_for.store(0);
}

void DoorbellWait::sleep(double seconds) noexcept {
  timespec time{};
  time.tv_sec = static_cast<time_t>(seconds);
  time.tv_nsec = static_cast<long>((seconds - static_cast<double>(time.tv_sec)) * 1e9);
  // FUTEX_PRIVATE would be wrong: the waking thread may belong to another process.
  syscall(SYS_futex,
          reinterpret_cast<std::uint32_t*>(&line_.doorbell),
          FUTEX_WAIT,
          seen_,
          &time,
          nullptr,
          0);
}

void ring_if_waiting(ControlPage& control, int rank) noexcept {
  if (control.line(rank).waiting_for.load() != 0) control.ring(rank);
}

}  // namespace tessera::comm
