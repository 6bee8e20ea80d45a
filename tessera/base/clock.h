// SPDX-License-Identifier: Apache-2.0
// Monotonic time.
#pragma once

#include <chrono>

namespace tessera {

/// Returns the monotonic time in seconds since an unspecified start.
inline double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace tessera
