// SPDX-License-Identifier: Apache-2.0
// The GPUs of NVIDIA of this host, as their driver describes them. Nothing here initializes CUDA,
// so that a process may fork after it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/memory/device.h"

namespace tessera::memory {

/// A GPU, by its number in the order of nvidia-smi.
struct NvidiaGpu {
  std::string name, uuid;            ///< "NVIDIA H200", "GPU-8f..."
  std::int64_t bytes = 0, used = 0;  ///< of its memory
  int major = 0, minor = 0;          ///< compute capability
  std::vector<std::string> used_by;  ///< "process 4711 (python)"; those that can be seen
};

/// The driver's answer.
struct NvidiaHost {
  std::string failure;  ///< why it says nothing; empty: it does
  std::string driver;   ///< "580.65.06"
  int cuda = 0;         ///< newest CUDA that the driver supports: 13000 is 13.0
  std::vector<NvidiaGpu> gpus;
};
/// Asks the driver by its library libnvidia-ml.so.1, or by the one that TESSERA_NVML names. Cost:
/// some milliseconds. Does not throw.
NvidiaHost ask_nvidia_driver();

/// The GPUs that this process can use, or why there are none.
struct NvidiaChoice {
  std::vector<DeviceInfo> devices;
  std::string why_not;
};
/// `visible`: the value of CUDA_VISIBLE_DEVICES, numbers or the beginnings of UUIDs, which ends at
/// the first entry that names no GPU; nullptr: all. Indices count the visible ones, as in CUDA.
/// `library`: why the CUDA libraries of this build cannot be loaded; empty: they can. Older drivers
/// and GPUs than those of CUDA 13 are not used.
NvidiaChoice choose_gpus(const NvidiaHost& host, const char* visible, const std::string& library);

/// What a user should know of a failure of CUDA on a device, and what to do.
struct NvidiaFailure {
  std::string what, fix;
};
/// `words`: CUDA's own message. `device`: the name and index of the GPU. `busy`: busy_note() of it.
NvidiaFailure explain_failure(const std::string& words,
                              const std::string& device,
                              const std::string& busy);

/// Says why the CUDA libraries in a folder are not those that this program was built for; an empty
/// string if they are. `folder` holds libtorch_cuda.so; the file version.py beside the folder names
/// the versions of torch and CUDA. `own`: torch's version of this program, "2.11.0".
std::string why_other_libraries(const std::string& folder, const std::string& own);

/// Says who uses more than a tenth of the memory of the device; empty: nobody.
std::string busy_note(const NvidiaHost& host, const char* visible, int index);

/// Returns the settings of NCCL in the environment, "NCCL_ALGO=Ring", in order of their names.
/// Ranks inherit them, also those of other hosts (hosts/ssh.h).
std::vector<std::string> nccl_settings();

}  // namespace tessera::memory
