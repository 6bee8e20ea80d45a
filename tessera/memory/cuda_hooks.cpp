// SPDX-License-Identifier: Apache-2.0
#include "tessera/memory/cuda_hooks.h"

#include <memory>
#include <string>

#include <ATen/detail/CUDAHooksInterface.h>

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

}  // namespace

void use_loaded_cuda_hooks() {
  if (loaded != nullptr || !kRegistered) return;
  std::unique_ptr<Base> found = at::CUDAHooksRegistry()->Create(kName, {});
  if (dynamic_cast<LateHooks*>(found.get()) == nullptr) loaded = found.release();
}

}  // namespace tessera::memory
