// SPDX-License-Identifier: Apache-2.0
// The thread-local state of a rank, for work that another thread does on its behalf.
#pragma once

#include <memory>
#include <optional>
#include <thread>

#include "tessera/memory/ledger.h"
#include "tessera/ops/op_log.h"

namespace tessera::nn::detail {

/// Captures the state of the constructing thread: the ledger and the tag of its allocations, and
/// the log of its operations. libtorch runs the backward of tensors on a device on its own thread,
/// which has none of these.
class ThreadContext {
 public:
  ThreadContext();

  /// Applies that state to the current thread during the scope's lifetime. Does nothing on the
  /// thread that the state was captured on, whose tag may have changed since. The ledger must be
  /// alive.
  class Scope {
   public:
    explicit Scope(const ThreadContext& context);

   private:
    std::optional<memory::ScopedLedger> ledger_;
    std::optional<memory::ScopedTag> tag_;
    std::optional<ops::ScopedOpLog> log_;
  };

 private:
  std::thread::id thread_;
  memory::Ledger* ledger_;
  memory::Tag tag_;
  std::weak_ptr<ops::OpLog> log_;
};

}  // namespace tessera::nn::detail
