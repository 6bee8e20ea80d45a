// SPDX-License-Identifier: Apache-2.0
// Headers come before the pragma, because their inline functions must run on every CPU.
#include <cstdint>

#include <immintrin.h>

#include "tessera/base/philox.h"
#include "tessera/ops/cpu/kernels.h"

#pragma GCC target("avx2,fma,avx512f,avx512bw,avx512vl,avx512dq,prefer-vector-width=512")
#define TESSERA_KERNELS avx512_kernels
#define TESSERA_LANES 16
#include "tessera/ops/cpu/variant.inc"
