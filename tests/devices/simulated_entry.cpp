// SPDX-License-Identifier: Apache-2.0
// The simulated GPUs by name, for plans with "run.device": "simulated". No host has any, so that
// "auto" is the CPU.
#include <string>
#include <vector>

#include "tessera/memory/device.h"

namespace tessera::test {
namespace {

TESSERA_DEVICE("simulated",
               {.kind = DeviceKind::Plugin,
                .found = [] { return std::vector<memory::DeviceInfo>(); },
                .why_not = [] { return std::string("it exists in tests only"); },
                .enter = [](Device) {},
                .use = [](Device) { return memory::DeviceUse(); }});

}  // namespace
}  // namespace tessera::test
