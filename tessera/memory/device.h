// SPDX-License-Identifier: Apache-2.0
// The registered kinds of devices, and the device of a rank. docs/adding/device.md shows how to add
// one.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/dtype.h"
#include "tessera/base/registry.h"

namespace tessera::memory {

/// A device of this host.
struct DeviceInfo {
  int index = 0;
  std::string name;        ///< "NVIDIA H200"
  std::int64_t bytes = 0;  ///< size of its memory
};
/// Memory of a device that this process uses, in bytes.
struct DeviceUse {
  std::int64_t current = 0, peak = 0;
};

/// A kind of device. The functions can be called from any thread.
struct DeviceEntry {
  DeviceKind kind = DeviceKind::Cpu;
  /// True if all ranks of a host use one device; otherwise each rank has its own.
  bool shared = false;
  /// The devices that this process can use; empty if there is none. Does not throw.
  std::vector<DeviceInfo> (*found)() = nullptr;
  /// Says why there is none: a missing driver or library. An empty string if there is one.
  std::string (*why_not)() = nullptr;
  /// Makes the device the current one of the calling thread. A rank calls it once, before its first
  /// tensor.
  void (*enter)(Device device) = nullptr;
  DeviceUse (*use)(Device device) = nullptr;
  /// Says that other processes use a large part of the memory of a device, and which; an empty
  /// string if they do not. May be absent.
  std::string (*busy)(Device device) = nullptr;
  /// Computes something on the device that the process has entered, and throws Error{Environment}
  /// if that fails. May be absent. device_trial.h calls it before a job starts.
  void (*try_out)(Device device) = nullptr;
  /// The libraries that a rank loads for the device, "plugin: its path"; may be absent.
  std::vector<std::string> (*libraries)() = nullptr;
};
/// By the name that a user types: "cpu". Static objects register them, before main or when a plugin
/// is loaded.
Registry<DeviceEntry>& devices();
#define TESSERA_DEVICE(name, ...)                     \
  static const bool TESSERA_UNIQUE(tessera_device_) = \
      ::tessera::memory::devices().add(name, __VA_ARGS__)

/// The entry for a kind of device; throws Error{Unsupported} if it has none.
const DeviceEntry& device_entry(DeviceKind kind);

/// The kind of the devices that device_of_rank() gives for `asked`, whether the host has any or
/// not. Throws Error{Config} for an unknown name.
DeviceKind device_kind(std::string_view asked);

/// The device of a rank that is number `local_rank` of `local_ranks` on this host. `asked`: the
/// name of a kind ("cpu"), a name and the indices to use ("cuda:0,2", one for each rank in order),
/// or "auto": the first kind by name, other than the CPU, of which this host has a device, else the
/// CPU. Throws Error{Config} for an unknown name or an invalid list, and Error{Environment} if
/// there are more ranks than devices, or no device at all. The message says what the host has.
Device device_of_rank(std::string_view asked, int local_rank, int local_ranks);

}  // namespace tessera::memory
