// SPDX-License-Identifier: Apache-2.0
// The device "cuda": GPUs of NVIDIA, on which libtorch's own kernels compute. Its library is loaded
// by the ranks only, so that a process without a GPU, and the one that forks the ranks, stays free
// of it.
#include <cstdlib>
#include <filesystem>
#include <string>

#include <dlfcn.h>
#include <fmt/format.h>

#include <ATen/DeviceAccelerator.h>
#include <ATen/Parallel.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "tessera/base/error.h"
#include "tessera/memory/nvidia.h"

namespace tessera::memory {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLibrary = "libtorch_cuda.so";

/// The folder of the CUDA libraries: TESSERA_CUDA, or that of libtorch itself.
fs::path library_folder() {
  if (const char* const named = std::getenv("TESSERA_CUDA")) return named;
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&at::get_num_threads), &info) == 0) return {};
  return fs::path(info.dli_fname).parent_path();
}

std::string why_no_library() {
  std::error_code unknown;
  const fs::path path = library_folder() / kLibrary;
  if (fs::exists(path, unknown)) return "";
  return fmt::format(
      "{} is not in {}: this libtorch is for CPUs; set TESSERA_CUDA to the folder torch/lib of "
      "torch 2.11 with CUDA 13",
      kLibrary,
      path.parent_path().string());
}

const NvidiaHost& host() {
  static const NvidiaHost host = ask_nvidia_driver();
  return host;
}

NvidiaChoice chosen() {
  return choose_gpus(host(), std::getenv("CUDA_VISIBLE_DEVICES"), why_no_library());
}

/// Loads the library; from then on libtorch has the device.
void load() {
  static const bool once = [] {
    // The order of nvidia-smi, in which the driver was asked.
    setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID", /*overwrite=*/0);
    // With this workspace products of cuBLAS give the same bits in every run.
    setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
    const std::string path = (library_folder() / kLibrary).string();
    // Lazily: symbols of libraries that nothing here calls may be missing.
    const void* const library = dlopen(path.c_str(), RTLD_LAZY | RTLD_GLOBAL);
    TESSERA_REQUIRE(library != nullptr,
                    Environment,
                    fmt::format("cannot load {}: {}", path, dlerror()),
                    "install the CUDA libraries that this torch names, or set run.device to cpu");
    return true;
  }();
  static_cast<void>(once);
}

void enter(Device device) {
  load();
  TESSERA_REQUIRE(c10::impl::hasDeviceGuardImpl(c10::DeviceType::CUDA),
                  Environment,
                  fmt::format("{} does not belong to this libtorch", kLibrary),
                  "use the libraries of torch 2.11 with CUDA 13");
  c10::impl::getDeviceGuardImpl(c10::DeviceType::CUDA)
      ->setDevice({c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(device.index)});
}

DeviceUse use(Device device) {
  const auto stats = at::accelerator::getDeviceStats(static_cast<c10::DeviceIndex>(device.index));
  constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return {stats.allocated_bytes[kAll].current, stats.allocated_bytes[kAll].peak};
}

TESSERA_DEVICE("cuda",
               {.kind = DeviceKind::Cuda,
                .found = [] { return chosen().devices; },
                .why_not = [] { return chosen().why_not; },
                .enter = enter,
                .use = use,
                .busy =
                    [](Device device) {
                      return busy_note(host(), std::getenv("CUDA_VISIBLE_DEVICES"), device.index);
                    }});

}  // namespace
}  // namespace tessera::memory
