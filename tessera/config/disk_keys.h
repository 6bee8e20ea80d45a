// SPDX-License-Identifier: Apache-2.0
// Keys of sections whose values may rest on a disk, in the notation of DeepSpeed's offload_param.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tessera/config/fields.h"

namespace tessera::config {

enum class OffloadDevice : std::uint8_t { None, Cpu, Nvme };

/// Describes the keys `device` and `nvme_path` of a section whose values may rest on a disk.
/// `where`: the beginning of the first sentence.
void describe_disk(Fields& fields,
                   std::optional<OffloadDevice>& device,
                   std::string& nvme_path,
                   const std::string& where);

/// The place where weights rest while no block uses them, in DeepSpeed's notation.
struct ParamOffloadKeys {
  std::optional<OffloadDevice> device;
  std::string nvme_path;
  std::optional<std::int64_t> buffer_count, max_in_cpu;
  [[nodiscard]] bool to_disk() const { return device == OffloadDevice::Nvme; }
  void describe(Fields& fields);
};

}  // namespace tessera::config
