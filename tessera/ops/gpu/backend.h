// SPDX-License-Identifier: Apache-2.0
// The backend "cuda" of the library: products and attention by libtorch's calls of cuBLAS, flash
// attention and cuDNN, everything else by plain ATen operations. It includes nothing of CUDA, so
// that tests run it on the CPU with stand-ins for these calls. The plugin derives from it and adds
// kernels (ops/cuda/backend.h).
#pragma once

#include "tessera/ops/aten/backend.h"

namespace tessera::ops::gpu {

class GpuBackend : public aten::AtenBackend {
 public:
  [[nodiscard]] bool runs_on(c10::DeviceType type) const override;

  // Products of 16-bit operands with fp32 sums, in fp32 results where those are asked for: the
  // gradient of a weight is added to its place in the flat buffer by the product itself.
  [[nodiscard]] at::Tensor linear(const at::Tensor& x_NI,
                                  const at::Tensor& weight_OI,
                                  const at::Tensor& bias_O,
                                  at::ScalarType out_dtype) const override;
  /// The matrix is widened to the dtype of x first.
  [[nodiscard]] at::Tensor linear_int8(const at::Tensor& x_NI,
                                       const Int8Rows& matrix,
                                       const at::Tensor& bias_O,
                                       at::ScalarType out_dtype) const override;
  [[nodiscard]] at::Tensor linear_input_grad(const at::Tensor& dy_NO,
                                             const at::Tensor& weight_OI) const override;
  void linear_weight_grad(const at::Tensor& dy_NO,
                          const at::Tensor& x_NI,
                          bool accumulate,
                          float scale,
                          const at::Tensor& dw_OI) const override;
  [[nodiscard]] std::int64_t product_scratch(Product product,
                                             const at::Tensor& a_MK,
                                             const at::Tensor& b_KN,
                                             at::ScalarType out,
                                             bool accumulate) const override;

  // Flash attention, or cuDNN's if attention_kernel.h allows it and it was faster; the reference of
  // ops/aten for what neither can: fp32, masks, biases, soft caps, dropout of probabilities.
  // Flash attention takes documents of any lengths in one call.
  [[nodiscard]] bool takes_documents(const at::Tensor& q_BHTK,
                                     const at::Tensor& k_BGSK,
                                     const AttentionArgs& args) const override;
  [[nodiscard]] AttentionOut attention(const at::Tensor& q_BHTK,
                                       const at::Tensor& k_BGSK,
                                       const at::Tensor& v_BGSK,
                                       const AttentionArgs& args) const override;
  [[nodiscard]] AttentionGrads attention_backward(const at::Tensor& dy_BHTK,
                                                  const at::Tensor& q_BHTK,
                                                  const at::Tensor& k_BGSK,
                                                  const at::Tensor& v_BGSK,
                                                  const AttentionOut& out,
                                                  const AttentionArgs& args) const override;
  [[nodiscard]] std::int64_t attention_scratch(const at::Tensor& q_BHTK,
                                               const at::Tensor& k_BGSK,
                                               const AttentionArgs& args,
                                               bool backward) const override;
};

}  // namespace tessera::ops::gpu
