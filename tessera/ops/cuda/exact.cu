// SPDX-License-Identifier: Apache-2.0
// Operations that have the bits of ops/aten: rotary positions, and numbers in eight and four bits.
// Compile without contraction (-fmad=false).
#include "tessera/ops/cuda/kernels.h"
#include "tessera/ops/cuda/lanes.h"

namespace tessera::ops::cuda {

namespace {

constexpr int kLanes = 32;
constexpr i64 kBytesOfBlock = kNf4Numbers / 2;
static_assert(kBytesOfBlock == kLanes, "a lane encodes a byte");

template <class T>
void start_widen_int8(const std::int8_t* rows, const float* scales, i64 numel, i64 width, T* out) {
  each_element(0, numel, [=] __device__(i64 at, Lane lane) {
    store(out + at, static_cast<float>(rows[at]) * scales[at / width], lane);
  });
}

template <class T>
void start_widen_nf4(
    const std::uint8_t* codes, const float* scales, const Nf4Table& table, i64 numel, T* out) {
  each_element(0, numel, [=] __device__(i64 at, Lane lane) {
    const unsigned byte = codes[at / 2], place = at % 2 == 0 ? byte >> 4U : byte & 15U;
    store(out + at, table.values[place] * scales[at / kNf4Numbers], lane);
  });
}

template <class T>
void start_rotary(const RotaryRows& a) {
  // A unit is a pair of rotated channels, or one channel that is copied.
  const i64 units = a.channels - a.pairs;
  each_element(0, a.samples * a.tokens * a.heads * units, [=] __device__(i64 at, Lane lane) {
    const i64 unit = at % units, head = at / units % a.heads;
    const i64 token = at / (units * a.heads) % a.tokens, sample = at / (units * a.heads * a.tokens);
    const T* const x =
        static_cast<const T*>(a.x) + sample * a.x_at[0] + head * a.x_at[1] + token * a.x_at[2];
    T* const y = static_cast<T*>(a.y) + sample * a.y_at[0] + head * a.y_at[1] + token * a.y_at[2];
    if (unit >= a.pairs) {
      y[unit + a.pairs] = x[unit + a.pairs];
      return;
    }
    const i64 place = sample * a.table_of_sample + token * a.pairs + unit;
    const float cosine = a.cosine[place], sine = a.sine[place] * a.direction;
    const i64 i = a.interleaved ? 2 * unit : unit, j = a.interleaved ? i + 1 : a.pairs + unit;
    const float first = load(x + i, lane), second = load(x + j, lane);
    store(y + i, first * cosine - second * sine, lane);
    store(y + j, second * cosine + first * sine, lane);
  });
}

/// A warp encodes a block: a lane reads two numbers and writes a byte.
__global__ void __launch_bounds__(kThreads) narrow_nf4_kernel(const float* values,
                                                              i64 numel,
                                                              Nf4Table table,
                                                              i64 blocks,
                                                              std::uint8_t* codes,
                                                              float* scales) {
  const i64 number = (i64{blockIdx.x} * kThreads + threadIdx.x) / kLanes;
  const i64 lane = threadIdx.x % kLanes, at = number * kNf4Numbers + 2 * lane;
  float pair[2] = {};
  if (number < blocks) {
    pair[0] = at < numel ? values[at] : 0.0F;
    pair[1] = at + 1 < numel ? values[at + 1] : 0.0F;
  }
  float largest = larger(fabsf(pair[0]), fabsf(pair[1]));
  for (int by = kLanes / 2; by > 0; by /= 2)
    largest = larger(largest, __shfl_xor_sync(0xffffffffU, largest, by));
  if (number >= blocks) return;
  const float inverse = 1.0F / larger(largest, 1e-38F);
  unsigned byte = 0;
  for (const float value : pair) {
    const float share = value * inverse;
    unsigned place = 0;
    for (const float middle : table.midpoints)
      place += middle < share ? 1U : 0U;
    byte = byte * 16U + place;
  }
  codes[number * kBytesOfBlock + lane] = static_cast<std::uint8_t>(byte);
  if (lane == 0) scales[number] = largest;
}

/// fn(T*) for the type of the elements.
template <class Fn>
void for_result(DType dtype, Fn fn) {
  if (dtype == DType::F32) return fn(static_cast<float*>(nullptr));
  if (dtype == DType::F16) return fn(static_cast<Half*>(nullptr));
  fn(static_cast<std::uint16_t*>(nullptr));
}

}  // namespace

void rotary(DType dtype, const RotaryRows& rows) {
  for_result(dtype, [&](auto* type) {
    start_rotary<std::remove_pointer_t<decltype(type)>>(rows);
  });
}

void widen_int8(const std::int8_t* rows,
                const float* scales,
                std::int64_t numel,
                std::int64_t width,
                DType dtype,
                void* out) {
  for_result(dtype, [&](auto* type) {
    start_widen_int8(rows, scales, numel, width, static_cast<decltype(type)>(out));
  });
}

void widen_nf4(const std::uint8_t* codes,
               const float* scales,
               const Nf4Table& table,
               std::int64_t numel,
               DType dtype,
               void* out) {
  for_result(dtype, [&](auto* type) {
    start_widen_nf4(codes, scales, table, numel, static_cast<decltype(type)>(out));
  });
}

void narrow_nf4(const float* values,
                std::int64_t numel,
                const Nf4Table& table,
                std::uint8_t* codes,
                float* scales) {
  const i64 blocks = (numel + kNf4Numbers - 1) / kNf4Numbers;
  if (blocks == 0) return;
  const auto grid = static_cast<unsigned>((blocks * kLanes + kThreads - 1) / kThreads);
  const Nf4Table copy = table;
  TESSERA_LAUNCH(
      grid, kThreads, narrow_nf4_kernel, values, numel, copy, blocks, codes, scales);
}

}  // namespace tessera::ops::cuda
