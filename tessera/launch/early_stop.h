// SPDX-License-Identifier: Apache-2.0
// Requests to stop while this process itself works and no rank runs yet.
#pragma once

#include <csignal>
#include <exception>
#include <string>

namespace tessera::launch {

/// A signal asked the process to stop before there was anything to save. No Error: nothing is
/// wrong.
class Stopped final : public std::exception {
 public:
  explicit Stopped(int signal);
  /// "stopped by signal 15 (SIGTERM): no step had begun, there was nothing to save".
  [[nodiscard]] const char* what() const noexcept override { return text_.c_str(); }
  [[nodiscard]] int exit_code() const noexcept;  ///< 130 after SIGINT, otherwise 143

 private:
  int signal_;
  std::string text_;
};

/// While it lives, stop_signals() wait for check(), so that whoever is at work can first remove
/// what is half made. Those that nobody checks for are launch()'s, or do what they always do when
/// this is destroyed. Threads: made before any other that lives meanwhile; check() from its own.
class EarlyStop {
 public:
  EarlyStop();
  ~EarlyStop();
  EarlyStop(const EarlyStop&) = delete;
  EarlyStop& operator=(const EarlyStop&) = delete;

  /// Throws Stopped if one of them has come. Cheap enough for every megabyte of work.
  void check() const;

 private:
  sigset_t waited_{};
  sigset_t before_{};
};

/// The signals that ask this process to stop: SIGINT, SIGTERM, SIGUSR1, and SIGHUP unless it is
/// ignored, as nohup does.
sigset_t stop_signals();
/// The exit code of a job that one of them ended before anything was saved.
int unsaved_exit_code(int signal) noexcept;

}  // namespace tessera::launch
