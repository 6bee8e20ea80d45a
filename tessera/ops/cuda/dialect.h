// SPDX-License-Identifier: Apache-2.0
// The language of the CUDA kernels: nvcc compiles them for a GPU, and a C++ compiler for the
// emulation on the CPU that tests use (tests/ops/cuda/emulation.h). A kernel uses CUDA C++ and, for
// what a C++ compiler lacks, the macros below:
//   TESSERA_SHARED(type, name, count)          an array in shared memory, not initialized
//   TESSERA_LAUNCH(grid, block, kernel, ...)   starts a kernel on current_stream() (kernels.h)
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#include <cuda_runtime.h>
#define TESSERA_SHARED(type, name, count) __shared__ type name[count]
#define TESSERA_LAUNCH(grid, block, kernel, ...) \
  kernel<<<(grid), (block), 0, static_cast<cudaStream_t>(current_stream())>>>(__VA_ARGS__)
#elif !defined(TESSERA_EMULATION)
#error "compile with nvcc, or with -include ops/cuda/emulation.h"
#endif
