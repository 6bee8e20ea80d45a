// SPDX-License-Identifier: Apache-2.0
// Transport between processes of one host over shared memory files.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "tessera/base/control_page.h"
#include "tessera/comm/transport.h"

namespace tessera::comm {

/// `arenas[i]`: the memory file of rank i, `arena_bytes` long (sparse). `control` is the mapped
/// control page. Both are inherited from the supervisor or exchanged by the ranks of a launcher.
/// Takes no ownership of the descriptors.
std::unique_ptr<Transport> make_shm_transport(int rank,
                                              const std::vector<int>& arenas,
                                              std::size_t arena_bytes,
                                              ControlPage* control);

}  // namespace tessera::comm
