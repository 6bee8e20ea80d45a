// SPDX-License-Identifier: Apache-2.0
// Two streams of a simulated GPU.
#pragma once

#include <functional>

#include "devices/simulated_gpu.h"
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace tessera::test {

/// Begins without violations.
class Streams : public ::testing::Test {
 protected:
  Streams() { (void)take_violations(); }
  /// Numbers on the device that were written by a kernel of the default stream.
  [[nodiscard]] at::Tensor made() const { return at::ones({1000}).to(device_).mul_(2); }
  [[nodiscard]] at::Tensor pinned() const {
    return at::ones({1000}, at::TensorOptions().pinned_memory(true));
  }
  void on_side(const std::function<void()>& work) const {
    const c10::StreamGuard guard(side_);
    work();
  }
  /// `after` continues after the work of `before` so far.
  void order(c10::Stream before, c10::Stream after) const {
    c10::Event event(device_.type());
    event.record(before);
    event.block(after);
  }

  at::Device device_ = simulated_gpu(1);
  c10::impl::VirtualGuardImpl guard_{device_.type()};
  c10::Stream first_ = guard_.getDefaultStream(device_);
  c10::Stream side_ = guard_.getStreamFromGlobalPool(device_);
};

}  // namespace tessera::test
