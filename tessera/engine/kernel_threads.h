// SPDX-License-Identifier: Apache-2.0
// Worker threads of ATen's kernels, which do not survive a fork.
#pragma once

namespace tessera::engine {

/// Error{Config} if this thread has worker threads of OpenMP, which ATen's operations run on. A
/// process that is forked now would lack them, and its first parallel operation would wait for them
/// forever. To find out, it ends these threads; the next parallel operation starts new ones. Other
/// threads of the process are not looked at. Cost: up to 50 ms if the process has any other thread.
void require_no_kernel_threads();

}  // namespace tessera::engine
