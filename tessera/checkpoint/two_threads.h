// SPDX-License-Identifier: Apache-2.0
// Runs many items of work on two threads: while one waits for the disk, the other hashes.
#pragma once

#include <cstddef>
#include <functional>

namespace tessera::checkpoint {

/// Calls work(i) for every i below `count`, in this order, on this thread and one more (on this one
/// only if no thread can be created). Starts nothing after a failure and throws that of the lowest
/// i. `work` may run twice at the same time.
void on_two_threads(std::size_t count, const std::function<void(std::size_t)>& work);

}  // namespace tessera::checkpoint
