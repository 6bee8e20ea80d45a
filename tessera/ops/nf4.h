// SPDX-License-Identifier: Apache-2.0
// Numbers in four bits (NF4), and in eight bits with the dynamic map (base/quant_codes.h), in
// blocks, in the layout of bitsandbytes. The tensors of a call are on one device. Threads: any.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "tessera/base/quant_codes.h"

namespace tessera::ops {

/// Numbers that share a scale, which is their largest magnitude.
inline constexpr std::int64_t kNf4Block = 64;

/// Encodes `values`: contiguous fp32 [n]. `codes_out`: uint8 [ceil(n / 64) * 32], two numbers per
/// byte, the first one in the upper half; the end of the last block is 0. `scales_out`: fp32
/// [ceil(n / 64)]. Chooses the nearest of the 16 values, and the lower one of two that are equally
/// near. Throws Error{Numeric} for a value that is not finite. Cost: two passes, 15 comparisons per
/// number.
void to_nf4(const at::Tensor& values, const at::Tensor& codes_out, const at::Tensor& scales_out);
/// Decodes into `out`: contiguous [m] in fp32, bf16 or fp16 with m <= 64 * blocks: value * scale in
/// fp32, rounded once.
void from_nf4(const at::Tensor& codes, const at::Tensor& scales, const at::Tensor& out);

/// encode_blocks() and encode_blocks_again() from fp32 [n] to uint8 [n] and fp32 [ceil(n / block)].
void to_codes8(const at::Tensor& values,
               std::int64_t block,
               const DynamicMap& map,
               const at::Tensor& codes_out,
               const at::Tensor& scales_out,
               bool again = false);
/// Decodes into fp32 [n].
void from_codes8(const at::Tensor& codes,
                 const at::Tensor& scales,
                 std::int64_t block,
                 const DynamicMap& map,
                 const at::Tensor& out);

}  // namespace tessera::ops
