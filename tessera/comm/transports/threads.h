// SPDX-License-Identifier: Apache-2.0
// Transport between ranks that are threads of one process: the pull protocol over ordinary memory,
// for tests and debuggers.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "tessera/base/control_page.h"
#include "tessera/comm/transport.h"

namespace tessera::comm {

/// Returns one transport per rank of `control`. `arena_bytes`: address space of each arena, not
/// memory.
std::vector<std::unique_ptr<Transport>> make_threads_transports(
    ControlPage* control, std::size_t arena_bytes = std::size_t{16} << 30);

}  // namespace tessera::comm
