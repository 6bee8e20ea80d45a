// SPDX-License-Identifier: Apache-2.0
// Values in 8 bits while they travel between ranks: blocks of 256 share an fp32 scale, their
// largest magnitude / 127. Source: Wang et al. 2023, "ZeRO++: extremely efficient collective
// communication for giant model training".
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "tessera/tensor/flat_buffer.h"

namespace tessera::parallel {

/// Values with one scale. It divides kChunk, so that codes do not depend on the number of ranks.
inline constexpr std::int64_t kByteBlock = 256;
static_assert(kChunk % kByteBlock == 0);

/// Returns the bytes of `numel` values: their codes, then their scales. `numel` must be a multiple
/// of kByteBlock.
constexpr std::int64_t byte_codes(std::int64_t numel) {
  return numel + numel / kByteBlock * std::int64_t{sizeof(float)};
}

// Tensors are contiguous, one-dimensional and in the CPU's memory; `bytes` is uint8
// [byte_codes(numel)], aligned to 4. Threads: any; the work is shared by the threads of the rank.

/// Rounds each value (fp32, bf16 or fp16) to the nearest code; the error is at most half a scale. A
/// block with a non-finite value decodes to non-finite values.
void encode_bytes(const at::Tensor& values, const at::Tensor& bytes);
/// Decodes into `out`: fp32, bf16 or fp16.
void decode_bytes(const at::Tensor& bytes, const at::Tensor& out);
/// Adds the decoded values to `out`: fp32.
void add_bytes(const at::Tensor& bytes, const at::Tensor& out);

}  // namespace tessera::parallel
