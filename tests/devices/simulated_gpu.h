// SPDX-License-Identifier: Apache-2.0
// GPUs of a simulated host, without any hardware.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace tessera::test {

inline constexpr int kSimulatedGpus = 8;

/// A device of libtorch (PrivateUse1) with streams, events and pinned memory, whose kernels are the
/// CPU's on copies. It behaves as a CUDA device does where programs go wrong:
///  - The host may access its memory only within the device's own kernels; at any other time it
///    gets SIGSEGV.
///  - Operations are complete when their call returns, but accesses of memory that no event and no
///    wait of the host has put into order are violations (order_checker.h). So is memory that is
///    given back while another stream uses it.
///  - Copies into pinned memory arrive only when the host waits for them; before, all bytes are
///    0xff. Pinned memory that the host changes while it is copied to the device is a violation.
///  - Autograd runs the backward of a device on a thread of its own.
/// The devices register themselves before main() starts. Threads: any.
at::Device simulated_gpu(int index = 0);

/// The violations since the last call, one sentence each.
std::vector<std::string> take_violations();

/// The work of all simulated devices since the process started.
struct SimulatedWork {
  std::int64_t operations = 0;
  std::int64_t host_waits = 0;  ///< times that the host waited for a device, blocking copies too
  std::int64_t pageable_copies = 0;  ///< blocking copies from and to memory that is not pinned
};
SimulatedWork simulated_work();

/// Memory of any simulated GPU, or of the host.
struct Bytes {
  const void* data = nullptr;
  std::size_t bytes = 0;
};
/// An operation of a library on a stream, which it knows by its native handle: checks the order of
/// its accesses. The values are moved by copy_there().
void on_simulated_stream(void* stream,
                         const std::string& what,
                         const std::vector<Bytes>& reads,
                         const std::vector<Bytes>& writes);
/// Calls a kernel that reads and writes memory of simulated GPUs by its addresses. The order of
/// these accesses is not checked.
void with_memory(const std::function<void()>& kernel);
/// Copies bytes between any memories, at once.
void copy_there(void* to, const void* from, std::size_t bytes);

}  // namespace tessera::test
