// SPDX-License-Identifier: Apache-2.0
// Headers come before the pragma, because their inline functions must run on every CPU.
#include <cstdint>

#include <immintrin.h>

#include "tessera/base/philox.h"
#include "tessera/ops/cpu/kernels.h"

#pragma GCC target("avx2,fma,f16c")
#define TESSERA_KERNELS avx2_kernels
#define TESSERA_LANES 8
#include "tessera/ops/cpu/variant.inc"
