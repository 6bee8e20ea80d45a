// SPDX-License-Identifier: Apache-2.0
#include "tessera/comm/doorbell.h"

#include <ctime>

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace tessera::comm {

// The store to waiting_for and the loads of news that follow it, the store of news and the load of
// waiting_for that follows that: all sequentially consistent, so that at least one side sees the
// other.
Nap::Nap(ControlPage& control, int rank, int peer) noexcept
    : line_(control.line(rank)), seen_(line_.doorbell.load()) {
  line_.waiting_for.store(static_cast<std::uint32_t>(peer) + 1);
}

Nap::~Nap() {
  line_.waiting_for.store(0);
}

void Nap::sleep(double seconds) noexcept {
  timespec time{};
  time.tv_sec = static_cast<time_t>(seconds);
  time.tv_nsec = static_cast<long>((seconds - static_cast<double>(time.tv_sec)) * 1e9);
  // Not FUTEX_PRIVATE: whoever wakes us may be another process.
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
