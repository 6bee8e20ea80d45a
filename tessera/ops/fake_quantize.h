// SPDX-License-Identifier: Apache-2.0
// Rounding to the numbers of a quantized format and back, for quantization-aware training. The
// results are those of torchao's fake quantizers. Any device; threads: any.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace tessera::ops {

enum class FakeFormat : std::uint8_t {
  Int8Row,    ///< 256 steps between the row's extremes and 0, whose step 0 is exact
  Int4Group,  ///< 16 steps between the extremes of a group
  Fp8Row,     ///< float8 e4m3, with the scale of a row
  Mxfp4,      ///< float4 e2m1, with a power of two for 32 numbers
  Nvfp4,      ///< float4 e2m1, with a float8 scale for 16 numbers and a scale of the whole
};

/// The numbers in a row that share a scale of their own; 0: the whole row. `group_size`: of
/// Int4Group.
std::int64_t fake_group(FakeFormat format, std::int64_t group_size);

/// Returns x_NI, of any float type, rounded to the format, in the same type; its gradient is not
/// defined here. Rows must consist of whole groups. `part_N`: int64, with Nvfp4 the part to which
/// each row belongs, from 0, where parts have a scale each; undefined: one part.
at::Tensor fake_quantized(const at::Tensor& x_NI,
                          FakeFormat format,
                          std::int64_t group_size,
                          const at::Tensor& part_N = {});

}  // namespace tessera::ops
