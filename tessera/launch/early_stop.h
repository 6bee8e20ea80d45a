// SPDX-License-Identifier: Apache-2.0
// Stop requests while this process itself works and no rank runs yet.
#pragma once

#include <csignal>
#include <exception>
#include <string>

namespace tessera::launch {

/// Thrown when a signal asked the process to stop before there was anything to save. It is not an
/// Error: nothing is wrong.
class Stopped final : public std::exception {
 public:
  explicit Stopped(int signal);
  /// Returns "stopped by signal 15 (SIGTERM): no step had begun, there was nothing to save".
  [[nodiscard]] const char* what() const noexcept override { return text_.c_str(); }
  [[nodiscard]] int exit_code() const noexcept;  ///< 130 after SIGINT, otherwise 143

 private:
  int signal_;
  std::string text_;
};

/// Defers stop_signals() until check() while it lives, so that unfinished output can be removed
/// first. Pending signals are delivered when the object is destroyed: to launch(), or with their
/// default action. Threads: create it before any thread that lives at the same time; call check()
/// from the creating thread.
class EarlyStop {
 public:
  EarlyStop();
  ~EarlyStop();
  EarlyStop(const EarlyStop&) = delete;
  EarlyStop& operator=(const EarlyStop&) = delete;

  /// Throws Stopped if a stop signal is pending. Cheap enough for every megabyte of work.
  void check() const;

 private:
  sigset_t waited_{};
  sigset_t before_{};
};

/// Returns the signals that ask this process to stop: SIGINT, SIGTERM, SIGUSR1, and SIGHUP unless
/// it is ignored (as under nohup).
sigset_t stop_signals();
/// Returns the exit code of a job that such a signal ended before anything was saved.
int unsaved_exit_code(int signal) noexcept;

}  // namespace tessera::launch
