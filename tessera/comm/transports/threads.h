// SPDX-License-Identifier: Apache-2.0
// Ranks that are threads of one process: the pull protocol over plain memory, for tests and
// debuggers.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "tessera/base/control_page.h"
#include "tessera/comm/transport.h"

namespace tessera::comm {

/// One transport a rank of `control`. `arena_bytes`: address space of each, not memory.
std::vector<std::unique_ptr<Transport>> make_threads_transports(
    ControlPage* control, std::size_t arena_bytes = std::size_t{16} << 30);

}  // namespace tessera::comm
