// SPDX-License-Identifier: Apache-2.0
#include "ops/cuda/emulated_backend.h"

#include "tessera/ops/cuda/kernels.h"

namespace tessera::ops {
namespace {

const EmulatedBackend kBackend;
TESSERA_BACKEND(emulated, kBackend);

}  // namespace

const Backend& emulated_backend() {
  return kBackend;
}

namespace cuda {

void* current_stream() {
  return nullptr;
}

}  // namespace cuda
}  // namespace tessera::ops
