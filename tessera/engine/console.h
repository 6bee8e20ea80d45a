// SPDX-License-Identifier: Apache-2.0
// The interface through which a run prints. The library never prints; the program passes one of
// these in.
#pragma once

#include <functional>
#include <string_view>

namespace tessera::engine {

/// Standard output as the program presents it. Used only on rank 0's own thread.
class Console {
 public:
  virtual ~Console() = default;
  /// Prints one whole line, above the live line if there is one.
  virtual void line(std::string_view text) = 0;
  /// Replaces the live line at the bottom of a terminal; does nothing if the output is piped.
  virtual void live(std::string_view text) = 0;
  /// Prints text without a line end, as generation produces it.
  virtual void stream(std::string_view text) = 0;
  [[nodiscard]] virtual bool is_terminal() const = 0;
  /// Sets a function that is called every second while the output waits for room, because a pipe's
  /// reader or a stopped terminal does not read it.
  virtual void on_wait(const std::function<void()>& /*call*/) {}
};

}  // namespace tessera::engine
