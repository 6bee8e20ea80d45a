// SPDX-License-Identifier: Apache-2.0
// NCCL for ranks that are threads, on simulated GPUs.
#pragma once

#include "tessera/transports/nccl_api.h"

namespace tessera::test {

/// Functions with NCCL's meaning. A call waits on the host until all ranks of its communicator have
/// made the same one, so that ranks which call in different orders hang, and copies the bytes; the
/// order of its accesses on its stream is checked. Communicators are never freed. Threads: any.
const transports::NcclApi& fake_nccl();

}  // namespace tessera::test
