// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/linear.h"

#include <ATen/ATen.h>

#include "tessera/ops/aten/backend.h"

namespace tessera::ops::aten {
namespace {

at::Tensor floats(const at::Tensor& x) {
  return x.defined() ? x.to(at::kFloat) : x;
}

}  // namespace

at::Tensor AtenBackend::linear(const at::Tensor& x_NI,
                               const at::Tensor& weight_OI,
                               const at::Tensor& bias_O,
                               at::ScalarType out_dtype) const {
  return at::linear(floats(x_NI), floats(weight_OI), floats(bias_O)).to(out_dtype);
}

bool AtenBackend::products_to_fp32(at::ScalarType /*dtype*/) const {
  return true;  // every product is fp32
}

at::Tensor AtenBackend::linear_input_grad(const at::Tensor& dy_NO,
                                          const at::Tensor& weight_OI) const {
  return at::matmul(floats(dy_NO), floats(weight_OI)).to(dy_NO.scalar_type());
}

void AtenBackend::linear_weight_grad(const at::Tensor& dy_NO,
                                     const at::Tensor& x_NI,
                                     bool accumulate,
                                     float scale,
                                     const at::Tensor& dw_OI) const {
  dw_OI.addmm_(floats(dy_NO).t(), floats(x_NI), accumulate ? 1.0 : 0.0, scale);
}

std::int64_t AtenBackend::product_scratch(Product /*product*/,
                                          const at::Tensor& a_MK,
                                          const at::Tensor& b_KN,
                                          at::ScalarType out,
                                          bool /*accumulate*/) const {
  const std::int64_t operands = a_MK.numel() + b_KN.numel(), result = a_MK.size(0) * b_KN.size(1);
  return 4 * ((a_MK.scalar_type() == at::kFloat ? 0 : operands) + (out == at::kFloat ? 0 : result));
}

void AtenBackend::linear_bias_grad(const at::Tensor& dy_NO,
                                   bool accumulate,
                                   const at::Tensor& db_O) const {
  const at::Tensor sums = dy_NO.to(at::kDouble).sum(0).view(db_O.sizes());
  db_O.copy_(accumulate ? db_O + sums : sums);
}

at::Tensor AtenBackend::linear_int8(const at::Tensor& x_NI,
                                    const Int8Rows& matrix,
                                    const at::Tensor& bias_O,
                                    at::ScalarType out_dtype) const {
  const at::Tensor weight = matrix.rows_OI.to(at::kFloat) * floats(matrix.scales_O).unsqueeze(1);
  return linear(x_NI, weight, bias_O, out_dtype);
}

void AtenBackend::widen_int8(const at::Tensor& rows_NI,
                             const at::Tensor& scales_N,
                             const at::Tensor& out_NI) const {
  out_NI.copy_(rows_NI.to(at::kFloat) * floats(scales_N).unsqueeze(1));
}

}  // namespace tessera::ops::aten
