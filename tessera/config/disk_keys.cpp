// SPDX-License-Identifier: Apache-2.0
#include "tessera/config/disk_keys.h"

#include <array>

#include "tessera/config/choices.h"

namespace tessera::config {
namespace {

constexpr auto kOffloadDevices = std::to_array<Named<OffloadDevice>>(
    {{OffloadDevice::None, "none"}, {OffloadDevice::Cpu, "cpu"}, {OffloadDevice::Nvme, "nvme"}});

}  // namespace

void describe_disk(Fields& f,
                   std::optional<OffloadDevice>& device,
                   std::string& nvme_path,
                   const std::string& where) {
  f.choice(
      "device",
      device,
      kOffloadDevices,
      {.text = where + ": on a disk (nvme), in the memory of the host (cpu), or in that of the "
                       "device that computes (none), which is the host's on a CPU.",
       .default_text = "none"});
  f.field("nvme_path",
          nvme_path,
          {.text = "With nvme: an existing folder on the disk. Its files have no names, so that "
                   "nothing remains of them."});
}

void ParamOffloadKeys::describe(Fields& f) {
  describe_disk(f, device, nvme_path, "Where working weights rest while no block uses them");
  f.field("buffer_count",
          buffer_count,
          {.text = "With nvme: maximum number of flat buffers (of a block each) of which a rank's "
                   "part is in memory at a time, to be read or written.",
           .min = 1,
           .max = 1e9,
           .default_text = "3: one is read, one used, one written"});
  f.field("max_in_cpu",
          max_in_cpu,
          {.text = "With nvme: blocks stay in the memory of the host in the order of the model, up "
                   "to this number of parameters in total.",
           .unit = "elements",
           .min = 0,
           .max = 1e15,
           .default_text = "0"});
}

}  // namespace tessera::config
