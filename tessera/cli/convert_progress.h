// SPDX-License-Identifier: Apache-2.0
// The progress of a conversion: a bar on a terminal, else an occasional line.
#pragma once

#include <cstdint>
#include <functional>

#include "tessera/engine/console.h"

namespace tessera::cli {

/// Percentages never decrease, and the last one shown is 100 %, once all bytes were reported. On a
/// terminal they are shown at most ten times a second, elsewhere every five seconds; shorter
/// conversions print nothing.
class ConvertProgress {
 public:
  /// Returns monotonic seconds.
  using Clock = std::function<double()>;
  static double seconds();

  ConvertProgress(std::uint64_t total_bytes, engine::Console& console, Clock now = seconds);
  /// Reports `bytes` more written bytes.
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
