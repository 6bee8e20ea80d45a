// SPDX-License-Identifier: Apache-2.0
// oneDNN's products of matrices of bf16 or fp32. libtorch calls a copy of its own, which it hides,
// for results in bf16 alone.
#pragma once

#include <ATen/core/Tensor.h>

namespace tessera::ops::cpu {

struct MatmulOptions {
  at::Tensor bias_N = {};   ///< fp32 or bf16; undefined: none
  bool accumulate = false;  ///< onto what c holds
  float scale = 1.0F;       ///< of the product
};
/// c_MN = scale * a_MK b_KN + bias_N + (accumulate ? c_MN : 0), accumulated in fp32. a, b: bf16
/// or fp32, both alike, rows or columns contiguous (transposed views are welcome); c: fp32, or bf16
/// where they are, contiguous rows. The
/// same shapes, strides and threads give the same bits. Many rows of a cost a copy of b. Threads:
/// any; on one thread inside of a parallel region. Errors: Error{Bug} if oneDNN refuses.
void matmul(const at::Tensor& a_MK,
            const at::Tensor& b_KN,
            const at::Tensor& c_MN,
            const MatmulOptions& options = {});
/// Bytes that matmul() needs for itself on as many threads as there are, of a product into `out`.
/// The tensors may be on meta. Starts no thread.
std::int64_t matmul_scratch(const at::Tensor& a_MK,
                            const at::Tensor& b_KN,
                            at::ScalarType out,
                            bool accumulate);

}  // namespace tessera::ops::cpu
