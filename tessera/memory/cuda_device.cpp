// SPDX-License-Identifier: Apache-2.0
// The device "cuda": GPUs of NVIDIA. Its libraries, libtorch's and the plugin with tessera's own
// kernels, are loaded by the ranks only, so that a process without a GPU, and the one that forks
// the ranks, stays free of them.
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include <dlfcn.h>
#include <fmt/format.h>

#include <ATen/ATen.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/Parallel.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/headeronly/version.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/memory/cuda_hooks.h"
#include "tessera/memory/device_plugin.h"
#include "tessera/memory/nvidia.h"

namespace tessera::memory {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLibrary = "libtorch_cuda.so";
constexpr const char* kPlugin = "libtessera_cuda.so";
/// The value of TESSERA_CUDA_PLUGIN for libtorch's kernels alone.
constexpr const char* kNoPlugin = "none";

/// The folder of libtorch, which is looked up once; empty if it is not known.
const fs::path& torch_folder() {
  static const fs::path folder = [] {
    Dl_info info{};
    if (dladdr(reinterpret_cast<const void*>(&at::get_num_threads), &info) == 0) return fs::path();
    return fs::path(info.dli_fname).parent_path();
  }();
  return folder;
}

/// The folder of the CUDA libraries: TESSERA_CUDA, that of libtorch itself, or the one that
/// `tools/setup.sh --cuda` fills next to it.
fs::path library_folder() {
  if (const char* const named = std::getenv("TESSERA_CUDA")) return named;
  const fs::path& own = torch_folder();
  if (own.empty()) return {};
  std::error_code unknown;
  const fs::path root = own.parent_path().parent_path();
  const fs::path beside = fs::path(root.string() + "-cuda") / "torch" / "lib";
  return !fs::exists(own / kLibrary, unknown) && fs::exists(beside / kLibrary, unknown) ? beside
                                                                                        : own;
}

/// The plugin's file; empty if the environment says that there shall be none.
fs::path plugin_file() {
  if (const char* const named = std::getenv("TESSERA_CUDA_PLUGIN"))
    return std::string_view(named) == kNoPlugin ? fs::path() : fs::path(named);
  return own_folder() / kPlugin;
}

std::string why_no_library() {
  std::error_code unknown;
  const fs::path folder = library_folder(), plugin = plugin_file();
  if (!fs::exists(folder / kLibrary, unknown)) {
    return fmt::format(
        "{} is not in {}: this libtorch is for CPUs; run tools/setup.sh --cuda, or set "
        "TESSERA_CUDA to the folder torch/lib of torch 2.11 with CUDA 13",
        kLibrary,
        folder.string());
  }
  if (std::string other = why_other_libraries(folder.string(), TORCH_VERSION); !other.empty())
    return other;
  if (plugin.empty() || fs::exists(plugin, unknown)) return "";
  return fmt::format(
      "the plugin {} with tessera's kernels for GPUs is missing: build it where nvcc is, by "
      "tools/build.sh release tessera_cuda, or set TESSERA_CUDA_PLUGIN to its file",
      plugin.string());
}

const NvidiaHost& host() {
  static const NvidiaHost host = ask_nvidia_driver();
  return host;
}

const char* visible() {
  return std::getenv("CUDA_VISIBLE_DEVICES");
}

NvidiaChoice chosen() {
  return choose_gpus(host(), visible(), why_no_library());
}

/// Products and attention with the same bits in every run, and with fp32 sums.
void choose_arithmetic() {
  at::globalContext().setAllowTF32CuBLAS(false);
  at::globalContext().setAllowBF16ReductionCuBLAS(false);
  at::globalContext().setAllowFP16ReductionCuBLAS(false);
}

/// Loads the libraries; from then on libtorch has the device, and ops/backend.h its kernels.
void load() {
  static const bool once = [] {
    // The order of nvidia-smi, in which the driver was asked.
    setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID", /*overwrite=*/0);
    // CUDA gets all hardware queues that there are, so that streams that wait for other ranks do
    // not hold up the others (transports/nccl.h).
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/0);
    // With this workspace products of cuBLAS give the same bits in every run.
    setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
    // Blocks that grow waste less memory than blocks of fixed sizes.
    setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True", /*overwrite=*/0);
    const std::string path = (library_folder() / kLibrary).string();
    prepare_for_cuda();
    // Lazily: symbols of libraries that nothing here calls may be missing.
    const void* const library = dlopen(path.c_str(), RTLD_LAZY | RTLD_GLOBAL);
    TESSERA_REQUIRE(library != nullptr,
                    Environment,
                    fmt::format("cannot load {}: {}", path, dlerror()),
                    "run tools/setup.sh --cuda, which installs the CUDA libraries that this torch "
                    "names, or set run.device to cpu");
    TESSERA_REQUIRE(c10::impl::hasDeviceGuardImpl(c10::DeviceType::CUDA),
                    Environment,
                    fmt::format("{} does not belong to this libtorch", path),
                    "use the libraries of torch 2.11 with CUDA 13: tools/setup.sh --cuda");
    use_loaded_cuda();
    if (const fs::path plugin = plugin_file(); !plugin.empty()) open_device_plugin(plugin);
    choose_arithmetic();
    return true;
  }();
  static_cast<void>(once);
}

c10::Device of_torch(Device device) {
  return {c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(device.index)};
}

[[noreturn]] void fail(Device device, const std::string& words) {
  const NvidiaChoice choice = chosen();
  std::string name = to_text(device);
  for (const DeviceInfo& info : choice.devices) {
    if (info.index == device.index) name += " (" + info.name + ")";
  }
  const NvidiaFailure failure =
      explain_failure(words, name, busy_note(host(), visible(), device.index));
  throw Error(Error::Kind::Environment, failure.what, failure.fix);
}

void enter(Device device) {
  load();
  try {
    c10::impl::getDeviceGuardImpl(c10::DeviceType::CUDA)->setDevice(of_torch(device));
  } catch (const c10::Error& error) {
    fail(device, error.what_without_backtrace());
  }
}

/// Adds numbers in memory of the device.
void try_out(Device device) {
  constexpr std::int64_t kNumbers = std::int64_t{16} << 20;  // 64 MiB
  double sum = 0.0;
  try {
    sum = at::ones({kNumbers}, at::device(of_torch(device)).dtype(at::kFloat))
              .add_(1.0)
              .sum(at::kDouble)
              .item<double>();
  } catch (const c10::Error& error) {
    fail(device, error.what_without_backtrace());
  }
  if (sum != 2.0 * static_cast<double>(kNumbers)) fail(device, "it adds wrongly");
}

DeviceUse use(Device device) {
  const auto stats = at::accelerator::getDeviceStats(static_cast<c10::DeviceIndex>(device.index));
  constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return {stats.allocated_bytes[kAll].current, stats.allocated_bytes[kAll].peak};
}

std::vector<std::string> libraries() {
  const fs::path plugin = plugin_file();
  std::vector<std::string> out = {"driver " + (host().failure.empty() ? host().driver : "none"),
                                  "libtorch " + (library_folder() / kLibrary).string(),
                                  "plugin " + (plugin.empty() ? kNoPlugin : plugin.string())};
  for (const std::string& setting : nccl_settings())
    out.push_back(setting);
  return out;
}

TESSERA_DEVICE("cuda",
               {.kind = DeviceKind::Cuda,
                .found = [] { return chosen().devices; },
                .why_not = [] { return chosen().why_not; },
                .enter = enter,
                .use = use,
                .busy = [](Device device) { return busy_note(host(), visible(), device.index); },
                .try_out = try_out,
                .libraries = libraries});

}  // namespace
}  // namespace tessera::memory
