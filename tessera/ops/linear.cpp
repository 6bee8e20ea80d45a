// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/linear.h"

#include <ATen/ATen.h>

#include "tessera/ops/cpu/gemm.h"
#include "tessera/ops/cpu/isa.h"
#include "tessera/ops/cpu/row_blocks.h"
#include "tessera/ops/cpu/tensors.h"

namespace tessera::ops {
namespace {

void check(const at::Tensor& a, const at::Tensor& b, std::int64_t a_size, std::int64_t b_size) {
  TESSERA_REQUIRE(a_size == b_size && a.scalar_type() == b.scalar_type(),
                  Shape,
                  std::string("linear: ") + c10::toString(a.scalar_type()) + cpu::shape(a) +
                      " does not go with " + c10::toString(b.scalar_type()) + cpu::shape(b),
                  "give both the same dtype and the same inner size");
}

at::Tensor rows_of(const at::Tensor& x) {
  return x.reshape({-1, x.size(-1)});
}

/// bf16 operands are multiplied as they are where the CPU can and the result is rounded to bf16
/// anyway.
bool as_they_are(const at::Tensor& x, at::ScalarType out) {
  return x.scalar_type() == at::kFloat || (out == at::kBFloat16 && native_bf16());
}

/// bf16 products that stay fp32, at the CPU's bf16 speed.
bool bf16_to_float(const at::Tensor& x) {
  return x.scalar_type() == at::kBFloat16 && native_bf16_to_fp32() && cpu::has_bf16_gemm();
}

/// x weight^T in fp32 out of bf16 operands.
at::Tensor float_product(const at::Tensor& x, const at::Tensor& weight) {
  std::vector<std::int64_t> sizes = x.sizes().vec();
  sizes.back() = weight.size(0);
  const at::Tensor rows = rows_of(x).contiguous();
  const at::Tensor y = at::empty({rows.size(0), weight.size(0)}, x.options().dtype(at::kFloat));
  cpu::bf16_gemm(rows, false, weight.contiguous(), true, y, false);
  return y.view(sizes);
}

}  // namespace

at::Tensor linear(const at::Tensor& x_NI,
                  const at::Tensor& weight_OI,
                  const at::Tensor& bias_O,
                  std::optional<at::ScalarType> out_dtype) {
  check(x_NI, weight_OI, x_NI.size(-1), weight_OI.size(-1));
  const at::ScalarType out = out_dtype.value_or(x_NI.scalar_type());
  if (x_NI.is_meta()) {
    std::vector<std::int64_t> sizes = x_NI.sizes().vec();
    sizes.back() = weight_OI.size(0);
    return at::empty(sizes, x_NI.options().dtype(out));
  }
  if (out == at::kFloat && !bias_O.defined() && bf16_to_float(x_NI)) {
    return float_product(x_NI, weight_OI);
  }
  const at::ScalarType inner = as_they_are(x_NI, out) ? x_NI.scalar_type() : at::kFloat;
  const at::Tensor bias = bias_O.defined() ? bias_O.to(inner) : at::Tensor();
  return at::linear(x_NI.to(inner), weight_OI.to(inner), bias).to(out);
}

at::Tensor linear_input_grad(const at::Tensor& dy_NO, const at::Tensor& weight_OI) {
  check(dy_NO, weight_OI, dy_NO.size(-1), weight_OI.size(0));
  const at::ScalarType out = dy_NO.scalar_type();
  if (dy_NO.is_meta()) {
    std::vector<std::int64_t> sizes = dy_NO.sizes().vec();
    sizes.back() = weight_OI.size(1);
    return at::empty(sizes, dy_NO.options());
  }
  const at::ScalarType inner = as_they_are(dy_NO, out) ? out : at::kFloat;
  return at::matmul(dy_NO.to(inner), weight_OI.to(inner)).to(out);
}

void linear_weight_grad(const at::Tensor& dy_NO,
                        const at::Tensor& x_NI,
                        const at::Tensor& dw_OI,
                        bool accumulate) {
  const at::Tensor dy = rows_of(dy_NO), x = rows_of(x_NI);
  check(dy, x, dy.size(0), x.size(0));
  TESSERA_REQUIRE(
      dw_OI.scalar_type() == at::kFloat && dw_OI.numel() == dy.size(1) * x.size(1),
      Shape,
      "linear_weight_grad into " + cpu::shape(dw_OI),
      "pass float of [" + std::to_string(dy.size(1)) + ", " + std::to_string(x.size(1)) + "]");
  if (dw_OI.is_meta() || dy.is_meta()) return;
  at::Tensor dw = dw_OI.view({dy.size(1), x.size(1)});
  if (bf16_to_float(x)) {
    return cpu::bf16_gemm(dy.contiguous(), true, x.contiguous(), false, dw, accumulate);
  }
  const at::Tensor left = dy.to(at::kFloat).t(), right = x.to(at::kFloat);
  if (accumulate) {
    dw.addmm_(left, right);
  } else {
    at::mm_out(dw, left, right);
  }
}

void linear_bias_grad(const at::Tensor& dy_NO, const at::Tensor& db_O, bool accumulate) {
  const at::Tensor dy = rows_of(dy_NO).contiguous();
  if (dy.is_meta()) return;
  const std::int64_t O = dy.size(1);
  float* to = cpu::destination(db_O, O, "the bias gradient");
  const cpu::RowBlocks blocks{dy.size(0)};
  const at::Tensor partial = at::zeros({blocks.count(), O}, dy.options().dtype(at::kFloat));
  float* sums = partial.data_ptr<float>();
  const auto kernel = cpu::kernels().column_sums[cpu::float_of(dy)];
  cpu::parallel(blocks.count(), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t block = begin; block < end; ++block) {
      kernel(dy.data_ptr(), O, sums + block * O, blocks.begin(block), blocks.end(block));
    }
  });
  cpu::fold_blocks(sums, blocks.count(), O, O, accumulate, to);
}

}  // namespace tessera::ops
