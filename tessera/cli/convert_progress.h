// SPDX-License-Identifier: Apache-2.0
// How far a conversion is: a bar on a terminal, now and then a line where there is none.
#pragma once

#include <cstdint>
#include <functional>

#include "tessera/engine/console.h"

namespace tessera::cli {

/// Shares never fall, and the last that is shown is 100 %, once all bytes were told of. On a
/// terminal at most ten times a second, elsewhere every five seconds: what is done before says
/// nothing.
class ConvertProgress {
 public:
  /// Seconds since whenever; never falls.
  using Clock = std::function<double()>;
  static double seconds();

  ConvertProgress(std::uint64_t total_bytes, engine::Console& console, Clock now = seconds);
  /// So many more bytes were written.
  void add(std::uint64_t bytes);
  [[nodiscard]] std::uint64_t done() const { return done_; }

 private:
  void show(double now);

  std::uint64_t total_, done_ = 0;
  engine::Console& console_;
  Clock now_;
  double begin_, next_;
  bool shown_ = false;
};

}  // namespace tessera::cli
