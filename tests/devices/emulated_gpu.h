// SPDX-License-Identifier: Apache-2.0
// The backend of the plugin on simulated GPUs.
#pragma once

#include "tessera/ops/backend.h"

namespace tessera::test {

/// The backend of the plugin for memory of simulated GPUs, whose kernels the emulation runs there.
/// The order of their accesses is checked like that of libtorch's operations; memory that an
/// operation does not name, or writes although it only reads it, raises SIGSEGV.
const ops::Backend& emulated_gpu();

}  // namespace tessera::test
