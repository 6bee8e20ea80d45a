// SPDX-License-Identifier: Apache-2.0
// The time of day.
#pragma once

#include <chrono>

namespace tessera {

/// Returns the seconds since the beginning of 1970, UTC.
inline double unix_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace tessera
