// SPDX-License-Identifier: Apache-2.0
// Where a run speaks to its user. The library never prints: the program hands one of these in.
#pragma once

#include <functional>
#include <string_view>

namespace tessera::engine {

/// Standard output as the program sees it. Threads: rank 0's own.
class Console {
 public:
  virtual ~Console() = default;
  /// One whole line; the live line, if there is one, is moved out of its way.
  virtual void line(std::string_view text) = 0;
  /// Replaces the live line at the bottom of a terminal; nothing when piped.
  virtual void live(std::string_view text) = 0;
  /// Text as it is made, without a line end (generation).
  virtual void stream(std::string_view text) = 0;
  [[nodiscard]] virtual bool is_terminal() const = 0;
  /// Called every second for as long as nobody takes what is said: the reader of a pipe, a terminal
  /// that was stopped.
  virtual void on_wait(const std::function<void()>& /*call*/) {}
};

}  // namespace tessera::engine
