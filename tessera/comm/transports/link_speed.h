// SPDX-License-Identifier: Apache-2.0
// Notices that messages from a rank of another host arrive much slower than before.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

namespace tessera::comm {

/// Watches the messages of one connection. The fastest message of a period of four seconds tells
/// what the link can carry, because single messages are late for many reasons. Threads: one.
class LinkSpeed {
 public:
  /// Adds a message of `bytes` whose bytes took `seconds` to arrive, at the time `now` in seconds.
  /// Returns a text once when a whole period had less than a quarter of the speed of an earlier
  /// one: "2.1 MiB/s, and before 210 MiB/s". Messages of less than 64 KiB are not counted, because
  /// latency, not bandwidth, determines their time.
  std::optional<std::string> add(std::size_t bytes, double seconds, double now);

 private:
  double began_ = -1.0;   // begin of the current period in seconds
  double fastest_ = 0.0;  // highest speed in this period, in bytes per second
  double before_ = 0.0;   // highest speed of all earlier periods, in bytes per second
  bool told_ = false;
};

}  // namespace tessera::comm
