// SPDX-License-Identifier: Apache-2.0
// The CPU backend: tessera's kernels (kernels.h), oneDNN and MKL. The operations are defined in the
// files of this folder with the names of their headers.
#pragma once

#include "tessera/ops/backend.h"

namespace tessera::ops::cpu {

class CpuBackend : public Backend {
 public:
  [[nodiscard]] bool runs_on(c10::DeviceType type) const override;
#define TESSERA_OP(result, name, parameters) result name parameters const override;
#include "tessera/ops/backend_ops.inc"
};

/// Computes every row of a product and every query of attention alone, in the order of the kernels
/// for few rows and for one query (ops/batch_invariance.h).
class BatchInvariantBackend final : public CpuBackend {
 public:
  [[nodiscard]] AttentionOut attention(const at::Tensor& q_BHTK,
                                       const at::Tensor& k_BGSK,
                                       const at::Tensor& v_BGSK,
                                       const AttentionArgs& args) const override;
  [[nodiscard]] std::int64_t attention_scratch(const at::Tensor& q_BHTK,
                                               const at::Tensor& k_BGSK,
                                               const AttentionArgs& args,
                                               bool backward) const override;
  [[nodiscard]] at::Tensor linear(const at::Tensor& x_NI,
                                  const at::Tensor& weight_OI,
                                  const at::Tensor& bias_O,
                                  at::ScalarType out_dtype) const override;
  [[nodiscard]] std::int64_t product_scratch(Product product,
                                             const at::Tensor& a_MK,
                                             const at::Tensor& b_KN,
                                             at::ScalarType out,
                                             bool accumulate) const override;
};

}  // namespace tessera::ops::cpu
