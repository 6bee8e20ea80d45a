// SPDX-License-Identifier: Apache-2.0
// Updates the facts about CUDA that libtorch keeps in a process whose CUDA library is loaded later.
#pragma once

namespace tessera::memory {

/// Call this before libtorch_cuda.so is loaded: libtorch starts the threads of its engine of
/// autograd now, of which there are none without a device.
void prepare_for_cuda();

/// At the first backward of a process, libtorch asks for the object that answers its questions
/// about CUDA, and its engine of autograd makes a queue for each device. It keeps both, also in
/// processes that are forked later, and the process that forks the ranks runs a backward when it
/// predicts their memory. So this library registers an object that says that there is no CUDA,
/// until this function is called, after libtorch_cuda.so was loaded: it then asks that library, and
/// the process gets a new engine. Without effect where libtorch_cuda.so was there from the start.
/// Threads: one, before the first kernel.
void use_loaded_cuda();

}  // namespace tessera::memory
