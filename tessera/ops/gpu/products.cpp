// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include "tessera/ops/gpu/backend.h"

namespace tessera::ops::gpu {
namespace {

bool is_16_bit(at::ScalarType dtype) {
  return dtype == at::kBFloat16 || dtype == at::kHalf;
}

at::Tensor rows_of(const at::Tensor& x_NI) {
  return x_NI.reshape({-1, x_NI.size(-1)});
}

}  // namespace

at::Tensor GpuBackend::linear(const at::Tensor& x_NI,
                              const at::Tensor& weight_OI,
                              const at::Tensor& bias_O,
                              at::ScalarType out_dtype) const {
  const at::ScalarType dtype = x_NI.scalar_type();
  if (weight_OI.scalar_type() != dtype)
    return AtenBackend::linear(x_NI, weight_OI, bias_O, out_dtype);
  if (out_dtype == dtype) {
    return at::linear(
        x_NI, weight_OI, bias_O.defined() ? bias_O.to(dtype) : std::optional<at::Tensor>());
  }
  if (!is_16_bit(dtype) || out_dtype != at::kFloat)
    return AtenBackend::linear(x_NI, weight_OI, bias_O, out_dtype);
  at::Tensor y_NO = at::mm(rows_of(x_NI), weight_OI.t(), at::kFloat);
  if (bias_O.defined()) y_NO.add_(bias_O);
  at::DimVector sizes(x_NI.sizes());
  sizes.back() = weight_OI.size(0);
  return y_NO.view(sizes);
}

at::Tensor GpuBackend::linear_int8(const at::Tensor& x_NI,
                                   const Int8Rows& matrix,
                                   const at::Tensor& bias_O,
                                   at::ScalarType out_dtype) const {
  const at::Tensor weight =
      at::empty(matrix.rows_OI.sizes(), matrix.rows_OI.options().dtype(x_NI.scalar_type()));
  widen_int8(matrix.rows_OI, matrix.scales_O, weight);
  return linear(x_NI, weight, bias_O, out_dtype);
}

at::Tensor GpuBackend::linear_input_grad(const at::Tensor& dy_NO,
                                         const at::Tensor& weight_OI) const {
  if (dy_NO.scalar_type() != weight_OI.scalar_type())
    return AtenBackend::linear_input_grad(dy_NO, weight_OI);
  return at::matmul(dy_NO, weight_OI);
}

void GpuBackend::linear_weight_grad(const at::Tensor& dy_NO,
                                    const at::Tensor& x_NI,
                                    bool accumulate,
                                    float scale,
                                    const at::Tensor& dw_OI) const {
  const at::ScalarType dtype = dy_NO.scalar_type();
  if (!is_16_bit(dtype) || x_NI.scalar_type() != dtype)
    return AtenBackend::linear_weight_grad(dy_NO, x_NI, accumulate, scale, dw_OI);
  at::Tensor out = dw_OI;
  at::addmm_outf(dw_OI, dy_NO.t(), x_NI, at::kFloat, accumulate ? 1.0 : 0.0, scale, out);
}

std::int64_t GpuBackend::product_scratch(Product /*product*/,
                                         const at::Tensor& /*a_MK*/,
                                         const at::Tensor& /*b_KN*/,
                                         at::ScalarType /*out*/,
                                         bool /*accumulate*/) const {
  return 0;  // cuBLAS has one workspace, which plans count beside the model
}

}  // namespace tessera::ops::gpu
