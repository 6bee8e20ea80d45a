// SPDX-License-Identifier: Apache-2.0
// A coroutine without a result: a protocol that waits for its link.
#pragma once

#include <coroutine>
#include <exception>
#include <utility>

#include "tessera/base/error.h"

namespace tessera::hosts {

/// Begins at once, and belongs to this object. Its arguments that are references must outlive it.
/// Threads: whichever resumes it.
class [[nodiscard]] Routine {
 public:
  struct promise_type {
    std::exception_ptr failure;
    Routine get_return_object() {
      return Routine(std::coroutine_handle<promise_type>::from_promise(*this));
    }
    static std::suspend_never initial_suspend() noexcept { return {}; }
    static std::suspend_always final_suspend() noexcept { return {}; }
    static void return_void() noexcept {}
    void unhandled_exception() { failure = std::current_exception(); }
  };

  Routine() = default;
  explicit Routine(std::coroutine_handle<promise_type> handle) : handle_(handle) {}
  Routine(Routine&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Routine& operator=(Routine&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  Routine(const Routine&) = delete;
  Routine& operator=(const Routine&) = delete;
  ~Routine() {
    if (handle_) handle_.destroy();
  }

  [[nodiscard]] bool done() const { return !handle_ || handle_.done(); }
  /// Throws what the routine has thrown. It must be done.
  void get() const {
    TESSERA_ASSERT(done());
    if (handle_ && handle_.promise().failure) std::rethrow_exception(handle_.promise().failure);
  }

 private:
  std::coroutine_handle<promise_type> handle_;
};

}  // namespace tessera::hosts
