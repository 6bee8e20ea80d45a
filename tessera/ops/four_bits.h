// SPDX-License-Identifier: Apache-2.0
// Numbers in four bits by blocks (base/four_bit_codes.h). The tensors of a call are on one device.
// Threads: any.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "tessera/base/four_bit_codes.h"

namespace tessera::ops {

/// encode_four_bits() and encode_four_bits_again() from fp32 [n] to uint8 [ceil(n / 2)] and fp32
/// [ceil(n / block)].
void to_four_bits(const at::Tensor& values,
                  std::int64_t block,
                  const FourBitMap& map,
                  const at::Tensor& codes_out,
                  const at::Tensor& scales_out,
                  bool again = false);
/// Decodes into fp32 [n].
void from_four_bits(const at::Tensor& codes,
                    const at::Tensor& scales,
                    std::int64_t block,
                    const FourBitMap& map,
                    const at::Tensor& out);

}  // namespace tessera::ops
