// SPDX-License-Identifier: Apache-2.0
#include <cstdint>

#include "tessera/base/philox.h"
#include "tessera/ops/cpu/kernels.h"

#define TESSERA_KERNELS portable_kernels
#define TESSERA_LANES 4
#include "tessera/ops/cpu/variant.inc"
