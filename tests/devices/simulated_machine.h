// SPDX-License-Identifier: Apache-2.0
// The state that all simulated GPUs share.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "devices/guarded_memory.h"
#include "devices/order_checker.h"
#include "devices/simulated_gpu.h"

namespace tessera::test {

/// A copy between a device and pinned memory that the host does not know to be complete.
struct Flight {
  int host = 0;
  StreamClock work;
  std::byte* pinned = nullptr;
  std::vector<std::byte> bytes;
  bool to_host = false;
  /// To the device, of values that the host does not have yet.
  bool through = false;
};

/// The operations of a stream that wait for other ranks, in order.
struct Pending {
  struct Operation {
    std::int64_t number = 0;  ///< of the stream's operations
    std::function<void()> complete;
  };
  std::mutex completing;
  std::deque<Operation> operations;  ///< Machine::mutex protects it
};

/// It is never destroyed: tensors of static objects are freed after it would be.
struct Machine {
  std::recursive_mutex mutex;
  GuardedMemory memory;
  OrderChecker order;
  SimulatedWork work;
  std::vector<std::string> violations;
  struct Owner {
    int stream = 0;
    std::vector<int> used;  ///< streams of record_stream()
  };
  std::map<const void*, Owner> owners;
  std::int64_t allocated = 0, most_allocated = 0;  ///< bytes of all devices
  std::map<const std::byte*, std::size_t> pinned;
  std::vector<Flight> flights;
  std::map<int, std::shared_ptr<Pending>> pending;  ///< by stream
  std::atomic<int> num_pending{0};

  /// Completes the operations of `stream` up to number `until`. May block; the caller must not hold
  /// the mutex.
  void complete(int stream, std::int64_t until);
  /// Completes that work.
  void complete(const StreamClock& until);
  [[nodiscard]] bool is_complete(const StreamClock& until);
  [[nodiscard]] bool is_pinned(const void* data) const;
  /// Ends a copy.
  void land(const Flight& flight);
  /// Lets pinned memory have the values of the copies to it that `stream` has waited for, as it
  /// finds them there. Returns whether there are any; hide_arrived() then takes them back.
  bool show_arrived(int stream, const OrderChecker::Range& pinned);
  void hide_arrived(int stream, const OrderChecker::Range& pinned);
  /// A copy on `stream` writes pinned memory: forgets the copies before, which it must have waited
  /// for.
  void write_over(int stream, const OrderChecker::Range& pinned);
  /// The host of a device waits for work, which is complete.
  void synchronize(int host, const StreamClock& until, const std::string& what);
};
Machine& machine();

}  // namespace tessera::test
