// SPDX-License-Identifier: Apache-2.0
// What the operations of one thread take: the clock beside the arithmetic they have to do and the
// memory they have to touch.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace tessera::ops {

/// What an operation cannot do without: its arithmetic, every operand read once and every result
/// written once. What a kernel does beside this (copies, a second pass) is its own loss.
struct OpWork {
  double flops = 0;
  double bytes = 0;
  std::string shape;  ///< "2048x768 -> 2304"
};

/// All calls of one operation with one shape.
struct OpRow {
  std::string name, shape;
  std::int64_t calls = 0;
  double seconds = 0, flops = 0, bytes = 0;
};

/// Records the operations of the thread that made it, and of threads under a ScopedOpLog, for as
/// long as it lives: ours by their OpScope, and those of libtorch that are called outside of them
/// ("aten::add"). An operation that runs within another counts with the outer one, so that no
/// second is counted twice. One at a time a thread. Cost: about two microseconds an operation;
/// without a log, an OpScope costs one look at a thread-local pointer, and libtorch nothing.
class OpLog {
 public:
  OpLog();
  ~OpLog();
  OpLog(const OpLog&) = delete;
  OpLog& operator=(const OpLog&) = delete;

  /// The longest first.
  [[nodiscard]] std::vector<OpRow> rows() const;
  /// Of this thread, or nullptr.
  static OpLog* current() noexcept;
  /// Expires with the log.
  [[nodiscard]] std::weak_ptr<OpLog> handle() const { return alive_; }

  /// Whether what begins now on this thread is within no other operation. Every begin() needs an
  /// end().
  static bool begin() noexcept;
  static void end() noexcept;
  /// Threads: any.
  void add(const std::string& name, const OpWork& work, double seconds);

 private:
  mutable std::mutex mutex_;
  std::map<std::pair<std::string, std::string>, OpRow> rows_;
  std::shared_ptr<OpLog> alive_;
  std::uint64_t handle_ = 0;  ///< of libtorch's callback
};

/// Makes another thread's log this thread's while it lives: autograd runs the backward of tensors
/// on a device on a thread of its own. An expired handle is no log.
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

/// An operation of ours, from here to the end of the scope. `work` makes its OpWork and is called
/// only where somebody logs.
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
  const char* name_ = nullptr;  ///< of an outermost one
  OpWork work_;
  double begin_ = 0;
};

}  // namespace tessera::ops
