// SPDX-License-Identifier: Apache-2.0
// The vocabulary of ops/rules.inc for the threads of a GPU: one value for each thread. bf16 and
// fp16 are their 16 bits, rounded to nearest, ties to even, with integer operations, so that every
// compiler gives the same bits.
#pragma once

#include "tessera/ops/cuda/dialect.h"
#include "tessera/ops/cuda/kernels.h"

namespace tessera::ops::cuda {

using F = float;
using i64 = std::int64_t;

/// fp16 as its 16 bits; a separate type from bf16's.
struct Half {
  std::uint16_t bits;
};
struct Lane {};

__device__ __forceinline__ std::uint32_t bits_of(float value) {
#if defined(__CUDA_ARCH__)
  return __float_as_uint(value);
#else
  return __builtin_bit_cast(std::uint32_t, value);
#endif
}
__device__ __forceinline__ float of_bits(std::uint32_t bits) {
#if defined(__CUDA_ARCH__)
  return __uint_as_float(bits);
#else
  return __builtin_bit_cast(float, bits);
#endif
}

__device__ __forceinline__ float load(const float* from, Lane) {
  return *from;
}
__device__ __forceinline__ void store(float* to, float value, Lane) {
  *to = value;
}

__device__ __forceinline__ float load(const std::uint16_t* from, Lane) {
  return of_bits(std::uint32_t{*from} << 16U);
}
__device__ __forceinline__ void store(std::uint16_t* to, float value, Lane) {
  const std::uint32_t bits = bits_of(value);
  const bool is_nan = (bits & 0x7fffffffU) > 0x7f800000U;
  const std::uint32_t rounded = (bits + 0x7fffU + ((bits >> 16U) & 1U)) >> 16U;
  *to = static_cast<std::uint16_t>(is_nan ? (bits >> 16U) | 0x40U : rounded);
}

__device__ __forceinline__ void store(Half* to, float value, Lane) {
  const std::uint32_t bits = bits_of(value), size = bits & 0x7fffffffU;
  const std::uint32_t sign = (bits >> 16U) & 0x8000U;
  std::uint32_t half = 0;
  if (size > 0x7f800000U) {  // a NaN keeps its upper bits
    half = 0x7e00U | ((size >> 13U) & 0x3ffU);
  } else if (size >= 0x477ff000U) {  // from 65520 on
    half = 0x7c00U;
  } else if (size >= 0x38800000U) {  // normal: the exponent's bias is 112 less
    half = (size - 0x38000000U + 0xfffU + ((size >> 13U) & 1U)) >> 13U;
  } else if (size > 0x33000000U) {  // subnormal: a multiple of 2^-24
    const std::uint32_t mantissa = (size & 0x7fffffU) | 0x800000U, shift = 126U - (size >> 23U);
    const std::uint32_t whole = mantissa >> shift, rest = mantissa & ((1U << shift) - 1U),
                        tie = 1U << (shift - 1U);
    half = whole + (rest > tie || (rest == tie && (whole & 1U) != 0U) ? 1U : 0U);
  }
  to->bits = static_cast<std::uint16_t>(sign | half);
}

__device__ __forceinline__ float load(const Half* from, Lane) {
  const std::uint32_t sign = (from->bits & 0x8000U) << 16U, size = from->bits & 0x7fffU;
  if (size >= 0x7c00U) return of_bits(sign | 0x7f800000U | ((size & 0x3ffU) << 13U));
  if (size >= 0x400U) return of_bits(sign | ((size << 13U) + 0x38000000U));
  const float small = static_cast<float>(size) * 0x1p-24F;  // exact
  return sign != 0U ? -small : small;
}

__device__ __forceinline__ float splat(float value) {
  return value;
}
__device__ __forceinline__ float root(float value) {
  return sqrtf(value);
}
/// The larger of two; `a` if one of them is NaN.
__device__ __forceinline__ float larger(float a, float b) {
  return a < b ? b : a;
}

inline constexpr int kThreads = 256;

/// The blocks for a number of threads; a thread of a large range handles several elements.
inline unsigned blocks_for(i64 threads) {
  constexpr i64 kMostBlocks = 2112;  // 16 for each of 132 multiprocessors
  const i64 blocks = (threads + kThreads - 1) / kThreads;
  return static_cast<unsigned>(blocks < 1 ? 1 : blocks > kMostBlocks ? kMostBlocks : blocks);
}

template <class Fn>
__global__ void __launch_bounds__(kThreads) element_kernel(i64 numel, Fn fn) {
  const i64 step = i64{gridDim.x} * kThreads;
  for (i64 at = i64{blockIdx.x} * kThreads + threadIdx.x; at < numel; at += step)
    fn(at, Lane{});
}

/// Calls fn(index, Lane) for every element of [0, end), in threads of the device.
template <class Fn>
void each_element(i64 /*begin*/, i64 end, Fn fn) {
  if (end > 0) TESSERA_LAUNCH(blocks_for(end), kThreads, (element_kernel<Fn>), end, fn);
}

}  // namespace tessera::ops::cuda
