// SPDX-License-Identifier: Apache-2.0
// libtorch's questions about CUDA, answered by a library that is loaded later.
#pragma once

namespace tessera::memory {

/// libtorch asks for the object that answers these questions once in a process, at its first
/// backward, and keeps it, also in processes that are forked later. The process that forks the
/// ranks runs one when it predicts their memory. So this library registers an object that says that
/// there is no CUDA, until this function is called, after libtorch_cuda.so was loaded: it then asks
/// that library. Threads: one, before the first kernel.
void use_loaded_cuda_hooks();

}  // namespace tessera::memory
