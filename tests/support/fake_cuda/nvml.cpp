// SPDX-License-Identifier: Apache-2.0
// A simulated libnvidia-ml.so.1. The variable SIMULATED_NVML describes the host by words: gpus=2
// cuda=13000 driver=580.65.06 major=9 used=1 (GiB) init=9 (the result of nvmlInit).
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

std::string value_of(const std::string& key, const char* otherwise) {
  const char* const described = std::getenv("SIMULATED_NVML");
  const std::string all = std::string(" ") + (described == nullptr ? "" : described) + " ";
  const std::size_t at = all.find(" " + key + "=");
  if (at == std::string::npos) return otherwise;
  const std::size_t begin = at + key.size() + 2;
  return all.substr(begin, all.find(' ', begin) - begin);
}

unsigned number_of(const std::string& key, const char* otherwise) {
  return static_cast<unsigned>(std::strtoul(value_of(key, otherwise).c_str(), nullptr, 10));
}

int put(const std::string& text, char* to, unsigned length) {
  std::snprintf(to, length, "%s", text.c_str());
  return 0;
}

struct Memory {
  unsigned long long total, free, used;
};
struct Process {
  unsigned pid;
  unsigned long long used;
  unsigned gpu_instance, compute_instance;
};
constexpr unsigned long long kGiB = 1ULL << 30;

}  // namespace

extern "C" {

int nvmlInit_v2() {
  return static_cast<int>(number_of("init", "0"));
}
int nvmlShutdown() {
  return 0;
}
const char* nvmlErrorString(int code) {
  return code == 9 ? "Driver Not Loaded" : "Unknown Error";
}
int nvmlSystemGetDriverVersion(char* to, unsigned length) {
  return put(value_of("driver", "580.65.06"), to, length);
}
int nvmlSystemGetCudaDriverVersion_v2(int* version) {
  *version = static_cast<int>(number_of("cuda", "13000"));
  return 0;
}
int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = number_of("gpus", "2");
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** handle) {
  *handle = reinterpret_cast<void*>(static_cast<unsigned long>(index) + 1);
  return 0;
}
int nvmlDeviceGetName(void* /*gpu*/, char* to, unsigned length) {
  return put("Simulated GPU", to, length);
}
int nvmlDeviceGetUUID(void* gpu, char* to, unsigned length) {
  return put("GPU-0000-" + std::to_string(reinterpret_cast<unsigned long>(gpu)), to, length);
}
int nvmlDeviceGetMemoryInfo(void* /*gpu*/, Memory* memory) {
  memory->total = number_of("gib", "8") * kGiB;
  memory->used = number_of("used", "0") * kGiB;
  memory->free = memory->total - memory->used;
  return 0;
}
int nvmlDeviceGetCudaComputeCapability(void* /*gpu*/, int* major, int* minor) {
  *major = static_cast<int>(number_of("major", "9"));
  *minor = 0;
  return 0;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void* /*gpu*/, unsigned* count, Process* processes) {
  if (number_of("used", "0") == 0) {
    *count = 0;
    return 0;
  }
  processes[0] = {1, number_of("used", "0") * kGiB, 0, 0};
  *count = 1;
  return 0;
}
}
