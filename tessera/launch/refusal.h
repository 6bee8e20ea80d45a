// SPDX-License-Identifier: Apache-2.0
// A mistake that all ranks of a launcher find before they have met is reported once.
#pragma once

#include <string>

#include "tessera/launch/launch.h"

namespace tessera::launch {

/// Returns whether this rank has to report `text`, the error with which it ends: true for
/// the lowest local rank that calls this with the same text. The others wait up to `patience_s` for
/// it; if it does not call, because only they have the error, the first of them reports it. The
/// rank that reports waits up to `patience_s` in the destructor, until the others have asked.
/// Throws nothing: if no socket can be had, every rank reports.
class Refusal {
 public:
  Refusal(const Launcher& launcher, const std::string& text, double patience_s = 3.0) noexcept;
  ~Refusal();
  Refusal(const Refusal&) = delete;
  Refusal& operator=(const Refusal&) = delete;
  [[nodiscard]] bool is_told_here() const { return told_here_; }

 private:
  bool told_here_ = true;
  int listener_ = -1;
  int others_ = 0;
  double patience_s_;
};

}  // namespace tessera::launch
