// SPDX-License-Identifier: Apache-2.0
// The backend for CUDA devices on tensors of the CPU, with emulated kernels. It is registered as
// "emulated".
#pragma once

#include "tessera/ops/cuda/backend.h"

namespace tessera::ops {

class EmulatedBackend final : public cuda::CudaBackend {
 public:
  [[nodiscard]] bool runs_on(c10::DeviceType type) const override {
    return type == c10::DeviceType::CPU;
  }
};
const Backend& emulated_backend();

}  // namespace tessera::ops
