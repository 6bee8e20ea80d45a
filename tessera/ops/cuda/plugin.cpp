// SPDX-License-Identifier: Apache-2.0
// Makes libtessera_cuda.so the backend of CUDA devices: opened in a rank, before its first tensor,
// it registers itself.
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "tessera/ops/cuda/backend.h"
#include "tessera/ops/cuda/kernels.h"

namespace tessera::ops::cuda {
namespace {

const CudaBackend kBackend;
TESSERA_BACKEND(cuda, kBackend);

}  // namespace

void* current_stream() {
  const c10::impl::VirtualGuardImpl guard(c10::DeviceType::CUDA);
  return guard.getStream(guard.getDevice()).native_handle();
}

}  // namespace tessera::ops::cuda
