// SPDX-License-Identifier: Apache-2.0
// What the operations of one thread take: the clock beside the arithmetic they have to do and the
// memory they have to touch.
#pragma once

#include <cstdint>
#include <map>
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

/// Records the operations of the thread that made it for as long as it lives: ours by their
/// OpScope, and those of libtorch that are called outside of them ("aten::add"). An operation that
/// runs within another counts with the outer one, so that no second is counted twice. One at a time
/// a thread. Cost: about two microseconds an operation; without a log, an OpScope costs one look at
/// a thread-local pointer, and libtorch nothing.
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

  /// Whether what begins now is within no other operation. Every begin() needs an end().
  bool begin() noexcept { return depth_++ == 0; }
  void end() noexcept { --depth_; }
  void add(const std::string& name, const OpWork& work, double seconds);

 private:
  std::map<std::pair<std::string, std::string>, OpRow> rows_;
  int depth_ = 0;
  std::uint64_t handle_ = 0;  ///< of libtorch's callback
};

/// An operation of ours, from here to the end of the scope. `work` makes its OpWork and is called
/// only where somebody logs.
class OpScope {
 public:
  template <class Fn>
  OpScope(const char* name, const Fn& work) : log_(OpLog::current()) {
    if (log_ != nullptr && log_->begin()) start(name, work());
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
