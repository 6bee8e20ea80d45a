// SPDX-License-Identifier: Apache-2.0
// Counts what tensors on the meta device would occupy if they had memory.
#pragma once

#include <cstdint>
#include <memory>

namespace tessera::memory {

/// While the object lives, allocations on the meta device by this thread are counted by their size,
/// as the ledger counts those of the CPU. One at a time in a thread. What was allocated before and
/// is freed meanwhile is not counted. Cost: a small allocation on the heap for each tensor.
class MetaCount {
 public:
  MetaCount();
  ~MetaCount();
  MetaCount(const MetaCount&) = delete;
  MetaCount& operator=(const MetaCount&) = delete;

  [[nodiscard]] std::int64_t current() const;  ///< bytes that are allocated and not freed
  [[nodiscard]] std::int64_t peak() const;     ///< the most since reset_peak()
  void reset_peak();

  /// The counters. They live as long as counted tensors do.
  struct State;

 private:
  std::shared_ptr<State> state_;
};

/// Allocations of this thread on the meta device are not counted while the object lives.
class NotCounted {
 public:
  NotCounted();
  ~NotCounted();
  NotCounted(const NotCounted&) = delete;
  NotCounted& operator=(const NotCounted&) = delete;

 private:
  std::shared_ptr<MetaCount::State> before_;
};

}  // namespace tessera::memory
