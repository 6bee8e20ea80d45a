// SPDX-License-Identifier: Apache-2.0
// MKL's products of bf16 and of fp16 matrices that are added up, and left, in fp32. ATen has no
// such call on the CPU.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace tessera::ops::cpu {

/// False for other dtypes, and where libtorch came without MKL.
bool has_gemm_to_fp32(at::ScalarType dtype);
/// c_MN = op(a) op(b) + (accumulate ? c_MN : 0). op transposes where asked. a, b: row-major, both
/// bf16 or both fp16; c: row-major fp32. Requires has_gemm_to_fp32() of their dtype.
void gemm_to_fp32(const at::Tensor& a,
                  bool transpose_a,
                  const at::Tensor& b,
                  bool transpose_b,
                  const at::Tensor& c_MN,
                  bool accumulate);

}  // namespace tessera::ops::cpu
