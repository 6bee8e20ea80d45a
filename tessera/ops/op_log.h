// SPDX-License-Identifier: Apache-2.0
// Logs the operations of one thread: their time, and the arithmetic and memory traffic that they
// need.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "tessera/base/dtype.h"
#include "tessera/base/machine.h"

namespace tessera::ops {

/// The minimum work of an operation: its arithmetic, every operand read once and every result
/// written once. Additional work of a kernel (copies, a second pass) is not included.
struct OpWork {
  double flops = 0;
  double bytes = 0;
  std::string shape;  ///< "2048 x 768 -> 2304"
  ShapeClass shape_class = ShapeClass::Elementwise;
  DType dtype = DType::F32;  ///< of the operands of a product
};

/// All calls of one operation with one shape.
struct OpRow {
  std::string name, shape;
  std::int64_t calls = 0;
  double seconds = 0, flops = 0, bytes = 0;
  ShapeClass shape_class = ShapeClass::Elementwise;
  DType dtype = DType::F32;
};

/// Records the operations of the thread that created it, and of threads with a ScopedOpLog, during
/// its lifetime: tessera's by their OpScope, and libtorch's that are called outside of these
/// ("aten::add"). An operation within another counts as part of the outer one, so that no time
/// counts twice. One log per thread at a time. Cost: about two microseconds per operation; without
/// a log, an OpScope costs one read of a thread-local pointer, and libtorch's operations cost
/// nothing.
class OpLog {
 public:
  OpLog();
  ~OpLog();
  OpLog(const OpLog&) = delete;
  OpLog& operator=(const OpLog&) = delete;

  /// Sorted by time, longest first.
  [[nodiscard]] std::vector<OpRow> rows() const;
  /// The log of this thread, or nullptr.
  static OpLog* current() noexcept;
  /// A handle that expires with the log.
  [[nodiscard]] std::weak_ptr<OpLog> handle() const { return alive_; }

  /// Returns whether the operation that begins now on this thread is outermost. Every begin() needs
  /// an end().
  static bool begin() noexcept;
  static void end() noexcept;
  /// Can be called from any thread.
  void add(const std::string& name, const OpWork& work, double seconds);

 private:
  mutable std::mutex mutex_;
  std::map<std::tuple<std::string, std::string, DType>, OpRow> rows_;
  std::shared_ptr<OpLog> alive_;
  std::uint64_t handle_ = 0;  ///< handle of libtorch's callback
};

/// Makes another thread's log this thread's log during its lifetime, because autograd runs the
/// backward of tensors on a device on a separate thread. An expired handle means no log.
class ScopedOpLog {
 public:
  explicit ScopedOpLog(const std::weak_ptr<OpLog>& log) noexcept;
  ~ScopedOpLog();
  ScopedOpLog(const ScopedOpLog&) = delete;
  ScopedOpLog& operator=(const ScopedOpLog&) = delete;

 private:
  std::shared_ptr<OpLog> log_;
  OpLog* before_;
};

/// An operation of tessera, from here to the end of the scope. `work` computes its OpWork and is
/// called only if there is a log.
class OpScope {
 public:
  template <class Fn>
  OpScope(const char* name, const Fn& work) : log_(OpLog::current()) {
    if (log_ != nullptr && OpLog::begin()) start(name, work());
  }
  ~OpScope() {
    if (log_ != nullptr) stop();
  }
  OpScope(const OpScope&) = delete;
  OpScope& operator=(const OpScope&) = delete;

 private:
  void start(const char* name, OpWork work);
  void stop();

  OpLog* log_;
  const char* name_ = nullptr;  ///< set only for an outermost operation
  OpWork work_;
  double begin_ = 0;
};

}  // namespace tessera::ops
