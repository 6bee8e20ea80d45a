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
/// Error feedback: `beta` is the weight of what the residual was in its moving average, at least 0
/// and less than 1; values are `scale` times what the residual is in.
struct ErrorFeedback {
  float beta = 0.0F;
  float scale = 1.0F;
};
/// Encodes values + scale * residual, and replaces `residual` (bf16, as many elements) by
///   beta * residual + (1 - beta) * (what the codes lost) / scale.
/// The sum of what is decoded over any number of calls then differs from the sum of the values by
/// residual * scale / (1 - beta) at most, apart from its rounding to bf16. The residual of a block
/// with a non-finite value does not change.
void encode_bytes(const at::Tensor& values,
                  const at::Tensor& bytes,
                  const at::Tensor& residual,
                  const ErrorFeedback& feedback);
/// Decodes into `out`: fp32, bf16 or fp16.
void decode_bytes(const at::Tensor& bytes, const at::Tensor& out);
/// Adds the decoded values to `out`: fp32.
void add_bytes(const at::Tensor& bytes, const at::Tensor& out);

}  // namespace tessera::parallel
