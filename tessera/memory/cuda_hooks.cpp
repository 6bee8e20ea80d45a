// SPDX-License-Identifier: Apache-2.0
#include "tessera/memory/cuda_hooks.h"

#include <memory>
#include <string>

#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/autograd/engine.h>

namespace tessera::memory {
namespace {

using Base = at::CUDAHooksInterface;
using c10::DeviceIndex;

const Base* loaded = nullptr;  ///< of libtorch_cuda.so; never destroyed

constexpr const char* kName = "CUDAHooks";

class LateHooks final : public Base {
 public:
#define FORWARD(result, name, parameters, ...)                                      \
  result name parameters const override {                                           \
    return loaded != nullptr ? loaded->name(__VA_ARGS__) : Base::name(__VA_ARGS__); \
  }
  FORWARD(void, init, ())
  FORWARD(const at::Generator&, getDefaultGenerator, (DeviceIndex index), index)
  FORWARD(at::Generator, getNewGenerator, (DeviceIndex index), index)
  FORWARD(at::Device, getDeviceFromPtr, (void* data), data)
  FORWARD(bool, isPinnedPtr, (const void* data), data)
  FORWARD(bool, hasCUDA, ())
  FORWARD(bool, hasCUDART, ())
  FORWARD(bool, hasMAGMA, ())
  FORWARD(bool, hasCuDNN, ())
  FORWARD(bool, hasCuSOLVER, ())
  FORWARD(bool, hasCuBLASLt, ())
  FORWARD(bool, hasCKSDPA, ())
  FORWARD(bool, hasCKGEMM, ())
  FORWARD(const at::cuda::NVRTC&, nvrtc, ())
  FORWARD(bool, hasPrimaryContext, (DeviceIndex index), index)
  FORWARD(DeviceIndex, current_device, ())
  FORWARD(at::Allocator*, getPinnedMemoryAllocator, ())
  FORWARD(at::Allocator*, getCUDADeviceAllocator, ())
  FORWARD(bool, compiledWithCuDNN, ())
  FORWARD(bool, supportsDilatedConvolutionWithCuDNN, ())
  FORWARD(bool, supportsDepthwiseConvolutionWithCuDNN, ())
  FORWARD(bool, supportsBFloat16ConvolutionWithCuDNNv8, ())
  FORWARD(bool, supportsBFloat16RNNWithCuDNN, ())
  FORWARD(long, versionCuDNN, ())
  FORWARD(long, versionRuntimeCuDNN, ())
  FORWARD(long, versionCuDNNFrontend, ())
  FORWARD(long, versionCUDART, ())
  FORWARD(std::string, showConfig, ())
  FORWARD(double, batchnormMinEpsilonCuDNN, ())
  FORWARD(int, getNumGPUs, ())
  FORWARD(void, deviceSynchronize, (DeviceIndex index), index)
  FORWARD(bool, isBuilt, ())
  FORWARD(bool, isAvailable, ())
  FORWARD(DeviceIndex, deviceCount, ())
  FORWARD(void, setCurrentDevice, (DeviceIndex index), index)
  FORWARD(DeviceIndex, getCurrentDevice, ())
  FORWARD(DeviceIndex, exchangeDevice, (DeviceIndex index), index)
  FORWARD(DeviceIndex, maybeExchangeDevice, (DeviceIndex index), index)
#undef FORWARD
};

// Any other library's object has priority. A process that has one already, such as a Python with
// CUDA, needs none of ours.
const bool kRegistered = [] {
  if (!at::CUDAHooksRegistry()->Has(kName)) {
    at::CUDAHooksRegistry()->Register(
        kName,
        [](at::CUDAHooksArgs) -> std::unique_ptr<Base> { return std::make_unique<LateHooks>(); },
        c10::REGISTRY_FALLBACK);
  }
  return true;
}();

/// The engine of a process that has devices now. It is never destroyed: its threads run until the
/// process ends.
class LateEngine final : public torch::autograd::Engine {
 public:
  // libtorch starts the threads of one engine in a process (a static flag), which was the other.
  LateEngine() { start_device_threads(); }
};
torch::autograd::Engine& late_engine() {
  static auto* const engine = new LateEngine;
  return *engine;
}

}  // namespace

void prepare_for_cuda() {
  if (c10::impl::hasDeviceGuardImpl(c10::DeviceType::CUDA)) return;
  torch::autograd::Engine::get_base_engine().initialize_device_threads_pool();
}

void use_loaded_cuda() {
  if (loaded != nullptr || !kRegistered) return;
  std::unique_ptr<Base> found = at::CUDAHooksRegistry()->Create(kName, {});
  if (dynamic_cast<LateHooks*>(found.get()) != nullptr) return;
  loaded = found.release();
  torch::autograd::set_default_engine_stub(late_engine);
}

}  // namespace tessera::memory
