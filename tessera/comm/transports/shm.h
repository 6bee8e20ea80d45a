// SPDX-License-Identifier: Apache-2.0
// Processes of one host over shared memory files.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "tessera/base/control_page.h"
#include "tessera/comm/transport.h"

namespace tessera::comm {

/// `arenas[i]`: memory file of rank i, `arena_bytes` long (sparse); `control` maps the control
/// page's file, both inherited from the supervisor or passed by the launcher's ranks. Takes no
/// ownership of the descriptors.
std::unique_ptr<Transport> make_shm_transport(int rank,
                                              const std::vector<int>& arenas,
                                              std::size_t arena_bytes,
                                              ControlPage* control);

}  // namespace tessera::comm
