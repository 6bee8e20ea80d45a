// SPDX-License-Identifier: Apache-2.0
// The device whose kernels a run on meta tensors stands for.
#pragma once

#include <c10/core/Device.h>

#include "tessera/ops/backend.h"

namespace tessera::ops {

/// While an object exists, operations of the constructing thread on meta tensors allocate the
/// scratch memory that the kernels of `device` need. Without one they assume the CPU. Objects may
/// be nested; destroy each on its own thread.
class ScopedMetaDevice {
 public:
  explicit ScopedMetaDevice(c10::Device device) noexcept;
  ~ScopedMetaDevice();
  ScopedMetaDevice(const ScopedMetaDevice&) = delete;
  ScopedMetaDevice& operator=(const ScopedMetaDevice&) = delete;

 private:
  c10::Device before_;
};

/// The kernels that meta tensors of this thread stand for.
const Backend& meta_backend();
/// Allocates `bytes` of scratch memory on meta.
at::Tensor meta_scratch(std::int64_t bytes);

}  // namespace tessera::ops
