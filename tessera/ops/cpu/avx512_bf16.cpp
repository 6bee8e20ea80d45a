// SPDX-License-Identifier: Apache-2.0
// For CPUs whose vector unit rounds to bf16 itself, with or without matrix tiles: numbers below
// 2^-126 become zero, all others have the same bits as in the other kernels. Headers come before
// the pragma, because their inline functions must run on every CPU.
#include <cstdint>

#include <immintrin.h>

#include "tessera/base/philox.h"
#include "tessera/ops/cpu/kernels.h"

#pragma GCC target("avx2,fma,avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,prefer-vector-width=512")
#define TESSERA_KERNELS avx512_bf16_kernels
#define TESSERA_LANES 16
#define TESSERA_ROUNDS_TO_BF16
#include "tessera/ops/cpu/variant.inc"
