// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/gpu/backend.h"

namespace tessera::ops::gpu {
namespace {

const GpuBackend kBackend;
TESSERA_BACKEND(cuda, kBackend);

}  // namespace

bool GpuBackend::runs_on(c10::DeviceType type) const {
  return type == c10::DeviceType::CUDA;
}

}  // namespace tessera::ops::gpu
