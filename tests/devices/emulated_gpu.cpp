// SPDX-License-Identifier: Apache-2.0
// With TESSERA_KERNELS=emulated the simulated GPUs have the backend of the plugin, whose kernels
// the emulation runs in their memory; otherwise they have the reference "aten". The order of these
// kernels' accesses is not checked.
#include <cstdlib>
#include <string_view>

#include "devices/simulated_gpu.h"
#include "ops/cuda/emulation.h"

#include "tessera/ops/cuda/backend.h"

namespace tessera::test {
namespace {

class EmulatedGpu final : public ops::cuda::CudaBackend {
 public:
  [[nodiscard]] bool runs_on(c10::DeviceType type) const override {
    return type == c10::DeviceType::PrivateUse1;
  }
};

const bool kRegistered = [] {
  const char* const asked = std::getenv("TESSERA_KERNELS");
  if (asked == nullptr || std::string_view(asked) != "emulated") return false;
  static const EmulatedGpu backend;
  emulation::set_surroundings(with_memory);
  ops::backends().add("simulated_plugin", &backend);
  return true;
}();

}  // namespace
}  // namespace tessera::test
