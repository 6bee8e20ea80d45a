// SPDX-License-Identifier: Apache-2.0
// Output of a process that must go on if nobody reads it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include <sys/types.h>

namespace tessera {

/// Writes to a descriptor. If it is a pipe or a socket whose reader does not read, write() waits
/// for room up to a limit, once; from then on it drops what finds no room, until the reader reads
/// again and learns how many lines it missed. Other files are written as write(2) does. A reader
/// that has exited is not an error. Threads: one at a time.
class BoundedOutput {
 public:
  BoundedOutput(int fd, double patience_s) : fd_(fd), patience_s_(patience_s) {}
  ~BoundedOutput();
  BoundedOutput(const BoundedOutput&) = delete;
  BoundedOutput& operator=(const BoundedOutput&) = delete;

  /// Returns whether the descriptor is a pipe or a socket. It may have changed since the last call.
  bool is_bounded();
  /// Writes whole lines. Calls `waiting` about every second with the seconds that it has waited.
  /// Returns false if some of the text was dropped.
  bool write(std::string_view text, const std::function<void(double seconds)>& waiting = {});
  /// Returns the number of lines that were dropped and of which the reader does not know yet.
  [[nodiscard]] std::int64_t dropped() const { return dropped_; }

 private:
  enum class Kind : std::uint8_t { Unknown, Plain, Pipe, Socket };
  void look();
  [[nodiscard]] ssize_t write_now(std::string_view text) const;

  int fd_;
  double patience_s_;
  Kind kind_ = Kind::Unknown;
  dev_t device_ = 0;
  ino_t inode_ = 0;
  int own_ = -1;  ///< the same pipe, without blocking: fd_ may be shared with other programs
  std::int64_t dropped_ = 0;
  bool stuck_ = false;
  bool torn_ = false;  ///< the last line that was written is incomplete
};

}  // namespace tessera
