// SPDX-License-Identifier: Apache-2.0
// Worker threads of ATen's kernels, which do not survive a fork.
#pragma once

namespace tessera::engine {

/// Throws Error{Config} if this thread has OpenMP worker threads, on which ATen's operations run. A
/// process forked now would lack them, and its first parallel operation would wait for them
/// forever. The check ends these threads; the next parallel operation starts new ones. Other
/// threads of the process are not checked. Cost: up to 50 ms if the process has any other thread.
void require_no_kernel_threads();

}  // namespace tessera::engine
