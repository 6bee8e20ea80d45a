// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/cpu/few_rows.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "tessera/ops/cpu/isa.h"
#include "tessera/ops/cpu/tensors.h"

namespace tessera::ops::cpu {
namespace {

/// From more rows on a library's product, which packs, is the faster one.
constexpr std::int64_t kMostRows = 8;
/// Elements of the matrix that make a share of work worth a thread.
constexpr std::int64_t kGrainElements = 32768;

bool is_float(at::ScalarType dtype) {
  return dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf;
}

}  // namespace

bool few_rows_fit(const at::Tensor& x, const at::Tensor& weight_OI) {
  const std::int64_t I = weight_OI.size(1);
  return isa() != Isa::Portable && I > 0 && x.numel() > 0 && x.numel() <= kMostRows * I &&
         weight_OI.is_contiguous() && is_float(x.scalar_type()) &&
         (is_float(weight_OI.scalar_type()) || weight_OI.scalar_type() == at::kChar);
}

at::Tensor few_rows_linear(const at::Tensor& x_NI,
                           const at::Tensor& weight_OI,
                           const at::Tensor& scales_O,
                           const at::Tensor& bias_O) {
  const std::int64_t N = x_NI.size(0), I = x_NI.size(1), O = weight_OI.size(0);
  TESSERA_REQUIRE(weight_OI.is_contiguous() && weight_OI.size(1) == I &&
                      (!scales_O.defined() || scales_O.numel() == O) &&
                      (!bias_O.defined() || bias_O.numel() == O),
                  Shape,
                  "the product of " + shape(x_NI) + " and " + shape(weight_OI),
                  "expected a row-major matrix with one scale and one bias a row");
  const at::Tensor x = plain_float(x_NI);
  at::Tensor y = at::empty({N, O}, x.options());
  const at::Tensor scales = scales_O.defined() ? plain_float(scales_O) : at::Tensor();
  const at::Tensor bias = bias_O.defined() ? plain_float(bias_O) : at::Tensor();
  const RowProducts rows{.x = x.data_ptr<float>(),
                         .vectors = N,
                         .inputs = I,
                         .outputs = O,
                         .weight = weight_OI.data_ptr(),
                         .scales = scales.defined() ? scales.data_ptr<float>() : nullptr,
                         .bias = bias.defined() ? bias.data_ptr<float>() : nullptr,
                         .y = y.data_ptr<float>()};
  const auto kernel = weight_OI.scalar_type() == at::kChar
                          ? kernels().row_products_int8
                          : kernels().row_products[float_of(weight_OI)];
  parallel(O,
           std::max<std::int64_t>(1, kGrainElements / I),
           [&](std::int64_t begin, std::int64_t end) { kernel(rows, begin, end); });
  return y;
}

}  // namespace tessera::ops::cpu
