// SPDX-License-Identifier: Apache-2.0
// Work that several threads share, with one place for their errors.
#pragma once

#include <atomic>
#include <functional>

namespace tessera {

/// Calls `work` in this thread and in up to `threads` - 1 others, each of which takes its share
/// from what is left, and returns when all calls have ended. If the system gives fewer threads, or
/// none, those that run do all the work. An exception, also one for lack of memory, sets `failed`,
/// at which the other calls should end, and the first one is rethrown here. `is_caller`: the call
/// runs in the calling thread, which alone may print or throw what ends a wait.
void on_threads(int threads,
                const std::function<void(bool is_caller, const std::atomic<bool>& failed)>& work);

}  // namespace tessera
