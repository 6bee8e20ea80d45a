// SPDX-License-Identifier: Apache-2.0
#include "tessera/memory/nvidia.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <string_view>
#include <system_error>

#include <dlfcn.h>
#include <fmt/format.h>

#include "tessera/base/text.h"

namespace tessera::memory {
namespace {

/// NVIDIA's management library (NVML): its functions return 0 for success. Source: NVML API
/// reference of CUDA 13.
constexpr int kCuda = 13000;
constexpr int kOldestMajor = 8, kOldestMinor = 0;  // the oldest for which kernels are compiled
constexpr const char* kOldestDriver = "580";

using Handle = void*;
struct MemoryInfo {
  unsigned long long total = 0, free = 0, used = 0;
};
struct ProcessInfo {
  unsigned int pid = 0;
  unsigned long long used = 0;
  unsigned int gpu_instance = 0, compute_instance = 0;
};

/// The library, which stays loaded.
class Nvml {
 public:
  explicit Nvml(const char* path) : library_(dlopen(path, RTLD_LAZY | RTLD_LOCAL)) {}
  [[nodiscard]] bool loaded() const { return library_ != nullptr; }
  /// Returns false if there is no such function or it fails.
  template <class... Arguments>
  bool call(const char* name, Arguments... arguments) {
    return result(name, arguments...) == 0;
  }
  template <class... Arguments>
  int result(const char* name, Arguments... arguments) {
    constexpr int kNotFound = 13;  // NVML_ERROR_FUNCTION_NOT_FOUND
    auto* const fn = reinterpret_cast<int (*)(Arguments...)>(dlsym(library_, name));
    return fn == nullptr ? kNotFound : fn(arguments...);
  }
  std::string words_of(int code) {
    auto* const fn = reinterpret_cast<const char* (*)(int)>(dlsym(library_, "nvmlErrorString"));
    return fn == nullptr ? fmt::format("error {}", code) : fn(code);
  }

 private:
  void* library_;
};

template <class... Before>
std::string text_of(Nvml& nvml, const char* name, Before... before) {
  std::array<char, 96> text{};
  if (!nvml.call(name, before..., text.data(), static_cast<unsigned int>(text.size()))) return "";
  text.back() = 0;
  return text.data();
}

std::string process_name(unsigned int pid) {
  std::ifstream file(fmt::format("/proc/{}/comm", pid));
  std::string name;
  std::getline(file, name);
  return fmt::format("process {}{}", pid, name.empty() ? "" : fmt::format(" ({})", name));
}

NvidiaGpu gpu_of(Nvml& nvml, Handle handle) {
  NvidiaGpu out;
  out.name = text_of(nvml, "nvmlDeviceGetName", handle);
  out.uuid = text_of(nvml, "nvmlDeviceGetUUID", handle);
  MemoryInfo memory;
  if (nvml.call("nvmlDeviceGetMemoryInfo", handle, &memory)) {
    out.bytes = static_cast<std::int64_t>(memory.total);
    out.used = static_cast<std::int64_t>(memory.used);
  }
  nvml.call("nvmlDeviceGetCudaComputeCapability", handle, &out.major, &out.minor);
  std::array<ProcessInfo, 64> processes{};
  unsigned int count = processes.size();
  if (nvml.call("nvmlDeviceGetComputeRunningProcesses_v3", handle, &count, processes.data())) {
    for (unsigned int i = 0; i < count && i < processes.size(); ++i)
      out.used_by.push_back(process_name(processes[i].pid));
  }
  return out;
}

/// The places in `gpus` of the visible ones, in order.
std::vector<std::size_t> visible_gpus(const std::vector<NvidiaGpu>& gpus, const char* visible) {
  std::vector<std::size_t> out;
  if (visible == nullptr) {
    for (std::size_t i = 0; i < gpus.size(); ++i)
      out.push_back(i);
    return out;
  }
  for (const std::string& entry : text::split(visible, ',')) {
    const std::string_view word = text::trim(entry);
    std::size_t place = gpus.size();
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), place);
    if (error != std::errc() || end != word.data() + word.size()) {
      const auto found = std::find_if(gpus.begin(), gpus.end(), [&](const NvidiaGpu& gpu) {
        return word.size() > 4 && std::string_view(gpu.uuid).starts_with(word);
      });
      place = static_cast<std::size_t>(found - gpus.begin());
    }
    const bool again = std::find(out.begin(), out.end(), place) != out.end();
    if (place >= gpus.size() || again) break;
    out.push_back(place);
  }
  return out;
}

bool too_old(const NvidiaGpu& gpu) {
  return gpu.major < kOldestMajor || (gpu.major == kOldestMajor && gpu.minor < kOldestMinor);
}

}  // namespace

NvidiaHost ask_nvidia_driver() {
  const char* const named = std::getenv("TESSERA_NVML");
  NvidiaHost out;
  Nvml nvml(named != nullptr ? named : "libnvidia-ml.so.1");
  if (!nvml.loaded()) {
    out.failure = "no driver of NVIDIA is installed (libnvidia-ml.so.1 is not found)";
    return out;
  }
  if (const int code = nvml.result("nvmlInit_v2"); code != 0) {
    out.failure = "the driver of NVIDIA does not answer: " + nvml.words_of(code);
    return out;
  }
  out.driver = text_of(nvml, "nvmlSystemGetDriverVersion");
  nvml.call("nvmlSystemGetCudaDriverVersion_v2", &out.cuda);
  unsigned int count = 0;
  nvml.call("nvmlDeviceGetCount_v2", &count);
  for (unsigned int i = 0; i < count; ++i) {
    Handle handle = nullptr;
    if (nvml.call("nvmlDeviceGetHandleByIndex_v2", i, &handle))
      out.gpus.push_back(gpu_of(nvml, handle));
  }
  nvml.call("nvmlShutdown");
  return out;
}

NvidiaChoice choose_gpus(const NvidiaHost& host, const char* visible, const std::string& library) {
  NvidiaChoice out;
  out.why_not = host.failure;
  if (!out.why_not.empty()) return out;
  if (host.gpus.empty()) {
    out.why_not = "the driver of NVIDIA finds no GPU";
    return out;
  }
  const std::vector<std::size_t> seen = visible_gpus(host.gpus, visible);
  if (seen.empty()) {
    out.why_not = fmt::format(
        "CUDA_VISIBLE_DEVICES=\"{}\" hides all of its {} GPUs", visible, host.gpus.size());
  } else if (host.cuda < kCuda) {
    out.why_not = fmt::format(
        "the driver {} supports CUDA {}.{}, and this build needs {}.{}: install the driver {} or a "
        "newer one",
        host.driver,
        host.cuda / 1000,
        host.cuda % 1000 / 10,
        kCuda / 1000,
        kCuda % 1000 / 10,
        kOldestDriver);
  } else if (const auto old = std::find_if(
                 seen.begin(), seen.end(), [&](std::size_t i) { return too_old(host.gpus[i]); });
             old != seen.end()) {
    const NvidiaGpu& gpu = host.gpus[*old];
    out.why_not = fmt::format(
        "{} has the compute capability {}.{}, and this build needs {}.{}: leave it out of "
        "CUDA_VISIBLE_DEVICES",
        gpu.name,
        gpu.major,
        gpu.minor,
        kOldestMajor,
        kOldestMinor);
  } else {
    out.why_not = library;
  }
  if (!out.why_not.empty()) return out;
  for (std::size_t i = 0; i < seen.size(); ++i)
    out.devices.push_back({.index = static_cast<int>(i),
                           .name = host.gpus[seen[i]].name,
                           .bytes = host.gpus[seen[i]].bytes});
  return out;
}

std::string busy_note(const NvidiaHost& host, const char* visible, int index) {
  const std::vector<std::size_t> seen = visible_gpus(host.gpus, visible);
  if (index < 0 || static_cast<std::size_t>(index) >= seen.size()) return "";
  const NvidiaGpu& gpu = host.gpus[seen[static_cast<std::size_t>(index)]];
  if (gpu.used * 10 <= gpu.bytes) return "";
  return fmt::format("{} of the {} of cuda:{} ({}) are in use{}{}",
                     text::bytes(static_cast<std::uint64_t>(gpu.used)),
                     text::bytes(static_cast<std::uint64_t>(gpu.bytes)),
                     index,
                     gpu.name,
                     gpu.used_by.empty() ? "" : " by ",
                     text::join(gpu.used_by, ", "));
}

NvidiaFailure explain_failure(const std::string& words,
                              const std::string& device,
                              const std::string& busy) {
  const auto has = [&](std::string_view part) { return words.find(part) != std::string::npos; };
  const std::string used = busy.empty() ? "" : ": " + busy;
  if (has("out of memory")) {
    return {fmt::format("{} has no free memory{}", device, used),
            "end the processes that use it, or choose another GPU (--device cuda:1)"};
  }
  if (has("busy or unavailable")) {
    return {fmt::format("{} is busy: another process uses it alone{}", device, used),
            "end that process, or allow several ones: nvidia-smi --compute-mode=0"};
  }
  if (has("no kernel image")) {
    return {device + " has an architecture for which the CUDA libraries have no kernels",
            "use a GPU of compute capability 8.0 or newer, or --device cpu"};
  }
  if (has("driver version is insufficient") || has("driver on your system is too old")) {
    return {device + ": the driver is older than the CUDA libraries",
            fmt::format("install the driver {} or a newer one", kOldestDriver)};
  }
  return {fmt::format("{} cannot be used: {}", device, words.substr(0, words.find('\n'))),
          "see whether nvidia-smi names a fault of this GPU; --device cpu computes on the CPU"};
}

std::string why_other_libraries(const std::string& folder, const std::string& own) {
  std::ifstream file(folder + "/../version.py");
  std::string torch, cuda;
  for (std::string line; std::getline(file, line);) {
    const auto value = [&] {
      const std::size_t begin = line.find('\''), end = line.rfind('\'');
      return begin == std::string::npos ? "" : line.substr(begin + 1, end - begin - 1);
    };
    if (line.starts_with("__version__")) torch = value();
    if (line.starts_with("cuda")) cuda = value();
  }
  if (torch.empty()) return "";  // dlopen() and the trial of the device remain
  const bool same = torch.starts_with(own) &&
                    (torch.size() == own.size() || torch[own.size()] == '+') &&
                    cuda.starts_with(fmt::format("{}.", kCuda / 1000));
  if (same) return "";
  return fmt::format(
      "the libraries in {} are those of torch {} with CUDA {}, and this build needs torch {} with "
      "CUDA {}: run tools/setup.sh --cuda, or set TESSERA_CUDA",
      folder,
      torch,
      cuda.empty() || cuda == "None" ? "none" : cuda,
      own,
      kCuda / 1000);
}

std::vector<std::string> nccl_settings() {
  std::vector<std::string> out;
  for (char** setting = environ; setting != nullptr && *setting != nullptr; ++setting) {
    if (std::string_view(*setting).starts_with("NCCL_")) out.emplace_back(*setting);
  }
  std::sort(out.begin(), out.end());
  return out;
}

}  // namespace tessera::memory
