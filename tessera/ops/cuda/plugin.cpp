// SPDX-License-Identifier: Apache-2.0
// The plugin libtessera_cuda.so: the backend of CUDA devices with tessera's own kernels. A rank
// opens it before its first tensor (memory/device_plugin.h).
#include <string_view>

#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "tessera/base/version.h"
#include "tessera/memory/device_plugin.h"
#include "tessera/ops/cuda/backend.h"
#include "tessera/ops/cuda/kernels.h"

namespace tessera::ops::cuda {

void* current_stream() {
  const c10::impl::VirtualGuardImpl guard(c10::DeviceType::CUDA);
  return guard.getStream(guard.getDevice()).native_handle();
}

}  // namespace tessera::ops::cuda

extern "C" const char* tessera_plugin(const char* version) {
  using namespace tessera;
  static_assert(std::is_same_v<decltype(&tessera_plugin), memory::PluginFunction>);
  if (std::string_view(version) != kTesseraVersion)
    return "it belongs to another version of tessera";
  if (ops::operations_of_library() != ops::kOperations)
    return "its operations are those of another build of tessera";
  static const ops::cuda::CudaBackend backend;
  ops::backends().add("cuda_plugin", &backend);
  return nullptr;
}
