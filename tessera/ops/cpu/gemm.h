// SPDX-License-Identifier: Apache-2.0
// MKL's product of bf16 matrices that is added up, and left, in fp32. ATen has no such call on the
// CPU.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace tessera::ops::cpu {

/// False where libtorch came without MKL.
bool has_bf16_gemm();
/// c_MN = op(a) op(b) + (accumulate ? c_MN : 0). op transposes where asked. a, b: row-major bf16;
/// c: row-major fp32. Requires has_bf16_gemm().
void bf16_gemm(const at::Tensor& a,
               bool transpose_a,
               const at::Tensor& b,
               bool transpose_b,
               const at::Tensor& c_MN,
               bool accumulate);

}  // namespace tessera::ops::cpu
