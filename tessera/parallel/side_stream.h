// SPDX-License-Identifier: Apache-2.0
// A stream of a device beside that of the computation, for copies from and to the host.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

namespace tessera::parallel {

/// The work of a stream up to a point.
using StreamMark = std::shared_ptr<c10::Event>;

/// Used only on the rank's own thread. The host waits for nothing, except in finish().
class SideStream {
 public:
  /// `device`: not the CPU.
  explicit SideStream(c10::Device device) : device_(device) {}
  SideStream(const SideStream&) = delete;
  SideStream& operator=(const SideStream&) = delete;

  /// The stream, which is made at the first call.
  [[nodiscard]] c10::Stream stream();
  /// The caller's current stream of the device.
  [[nodiscard]] c10::Stream current() const;
  /// Lets the stream continue after the work that the current stream has so far.
  void follow_current();
  /// Lets the stream continue after `mark`, if it is not null.
  void follow(const StreamMark& mark);
  /// Lets the current stream continue after `mark`, if it is not null.
  void lead_current(const StreamMark& mark) const;
  /// The work of the stream so far.
  [[nodiscard]] StreamMark mark();
  /// The work of the current stream so far.
  [[nodiscard]] StreamMark mark_current() const;
  /// Lets the host wait for `mark`, if it is not null.
  static void finish(const StreamMark& mark);

 private:
  c10::Device device_;
  std::optional<c10::Stream> stream_;
};

/// The way of weights from the host to a device: a stream, and pinned memory for those that come
/// from a disk.
class Uploads {
 public:
  explicit Uploads(c10::Device device) : stream(device) {}
  SideStream stream;
  /// Returns pinned memory of that many bytes, which the host may write. It waits for the copy that
  /// read it last.
  at::Tensor room(std::int64_t bytes);
  /// The copy from the room is complete then.
  void reads_room(StreamMark mark) { read_ = std::move(mark); }

 private:
  at::Tensor room_;
  StreamMark read_;
};

}  // namespace tessera::parallel
