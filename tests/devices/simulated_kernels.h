// SPDX-License-Identifier: Apache-2.0
// Kernels of simulated GPUs that know memory by its address.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "devices/simulated_gpu.h"

#include <ATen/core/Tensor.h>

namespace tessera::test {

/// An operation that starts kernels which know memory by its address, on the current stream of the
/// thread's current device: checks the order of its accesses. As long as it exists,
/// with_own_memory() opens the memory that it names, and what the thread allocates meanwhile.
class ScopedKernels {
 public:
  /// Tensors may be undefined, or of the host.
  ScopedKernels(std::string what,
                const std::vector<at::Tensor>& reads,
                const std::vector<at::Tensor>& writes);
  ScopedKernels(std::string what, std::vector<Bytes> reads, std::vector<Bytes> writes);
  ~ScopedKernels();
  ScopedKernels(const ScopedKernels&) = delete;
  ScopedKernels& operator=(const ScopedKernels&) = delete;
  /// The operation also wrote its result.
  void wrote(const at::Tensor& result) const;

 private:
  std::string what_;
  std::vector<Bytes> reads_, writes_;
  std::vector<const void*> allocated_;
  ScopedKernels* before_;
  friend void with_own_memory(const std::function<void()>& kernel);
  friend struct NewMemory;
};
/// Calls a kernel of the ScopedKernels of this thread: other memory of simulated GPUs raises
/// SIGSEGV, and so does a write to what is only read.
void with_own_memory(const std::function<void()>& kernel);
/// What the allocator of the simulated GPUs tells.
struct NewMemory {
  static void add(const void* at);
  static void remove(const void* at);
};

}  // namespace tessera::test
