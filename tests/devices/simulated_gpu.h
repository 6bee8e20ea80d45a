// SPDX-License-Identifier: Apache-2.0
// GPUs of a simulated host, without any hardware.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
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
///  - A thread that launches nothing may ask whether an event is complete; for others it never is,
///    so that they must wait at last.
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
  std::map<std::string, std::int64_t> waits;  ///< host_waits by what the host waited for
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
/// The same for an operation that needs other ranks, such as a receive. The stream continues when
/// `complete` returns, which is called, and may block, when work that comes after the operation is
/// launched or the host waits for it.
void later_on_simulated_stream(void* stream,
                               const std::string& what,
                               const std::vector<Bytes>& reads,
                               const std::vector<Bytes>& writes,
                               std::function<void()> complete);
/// Calls a kernel that reads and writes memory of simulated GPUs by its addresses. The order of
/// these accesses is not checked.
void with_memory(const std::function<void()>& kernel);

/// True if an allocation of a simulated GPU has this address.
bool is_simulated_memory(const void* data);
/// Copies bytes between any memories, at once.
void copy_there(void* to, const void* from, std::size_t bytes);

/// What a program can forget that puts the work of streams into order.
enum class Forgotten {
  WaitsOfComputation,  ///< a device's first stream waits for no event
  WaitsOfOthers,       ///< no other stream does
  UseByStreams         ///< record_stream()
};
/// As long as it exists, simulated devices behave as if the program did not make these calls.
class ScopedForgotten {
 public:
  explicit ScopedForgotten(Forgotten what);
  ~ScopedForgotten();
  ScopedForgotten(const ScopedForgotten&) = delete;
  ScopedForgotten& operator=(const ScopedForgotten&) = delete;

 private:
  Forgotten what_;
};

}  // namespace tessera::test
