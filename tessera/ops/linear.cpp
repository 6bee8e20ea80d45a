// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/linear.h"

#include <vector>

#include <ATen/ATen.h>

#include "tessera/ops/cpu/gemm.h"
#include "tessera/ops/cpu/isa.h"
#include "tessera/ops/cpu/row_blocks.h"
#include "tessera/ops/cpu/tensors.h"
#include "tessera/ops/cpu/widened.h"

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

/// How a product of these operands is made on this CPU.
enum class Way {
  Aten,     ///< in the operands' dtype
  ToFp32,   ///< 16-bit operands, fp32 result
  Widened,  ///< operands widened to fp32
};
Way way(at::ScalarType in, at::ScalarType out) {
  if (in == at::kFloat) return Way::Aten;
  const bool fp16 = in == at::kHalf;
  if (out == at::kFloat && (fp16 ? native_fp16_to_fp32() : native_bf16_to_fp32()) &&
      cpu::has_gemm_to_fp32(in)) {
    return Way::ToFp32;
  }
  return out == in && (fp16 ? native_fp16() : native_bf16()) ? Way::Aten : Way::Widened;
}

/// `x` with its last size replaced: the shape of a result.
std::vector<std::int64_t> with_last(const at::Tensor& x, std::int64_t last) {
  std::vector<std::int64_t> sizes = x.sizes().vec();
  sizes.back() = last;
  return sizes;
}

}  // namespace

at::Tensor linear(const at::Tensor& x_NI,
                  const at::Tensor& weight_OI,
                  const at::Tensor& bias_O,
                  std::optional<at::ScalarType> out_dtype) {
  check(x_NI, weight_OI, x_NI.size(-1), weight_OI.size(-1));
  const at::ScalarType in = x_NI.scalar_type(), out = out_dtype.value_or(in);
  const auto sizes = with_last(x_NI, weight_OI.size(0));
  if (x_NI.is_meta()) return at::empty(sizes, x_NI.options().dtype(out));
  const Way how = way(in, out);
  if (how == Way::Aten) {
    const at::Tensor bias = bias_O.defined() ? bias_O.to(in) : at::Tensor();
    return at::linear(x_NI, weight_OI, bias).to(out);
  }
  const at::Tensor x = rows_of(x_NI);
  const at::Tensor y = at::empty({x.size(0), weight_OI.size(0)}, x.options().dtype(out));
  if (how == Way::ToFp32) {
    cpu::gemm_to_fp32(x.contiguous(), false, weight_OI.contiguous(), true, y, false);
    if (bias_O.defined()) y.add_(bias_O);
  } else {
    cpu::widened_linear(x, weight_OI, bias_O, y);
  }
  return y.view(sizes);
}

bool products_to_fp32(at::ScalarType dtype) {
  return way(dtype, at::kFloat) != Way::Widened;
}

at::Tensor linear_input_grad(const at::Tensor& dy_NO, const at::Tensor& weight_OI) {
  check(dy_NO, weight_OI, dy_NO.size(-1), weight_OI.size(0));
  const at::ScalarType dtype = dy_NO.scalar_type();
  const auto sizes = with_last(dy_NO, weight_OI.size(1));
  if (dy_NO.is_meta()) return at::empty(sizes, dy_NO.options());
  if (way(dtype, dtype) == Way::Aten) return at::matmul(dy_NO, weight_OI);
  return cpu::widened_input_grad(rows_of(dy_NO), weight_OI).to(dtype).view(sizes);
}

void linear_weight_grad(const at::Tensor& dy_NO,
                        const at::Tensor& x_NI,
                        const at::Tensor& dw_OI,
                        bool accumulate,
                        float scale) {
  const at::Tensor dy = rows_of(dy_NO), x = rows_of(x_NI);
  check(dy, x, dy.size(0), x.size(0));
  TESSERA_REQUIRE(
      dw_OI.scalar_type() == at::kFloat && dw_OI.numel() == dy.size(1) * x.size(1),
      Shape,
      "linear_weight_grad into " + cpu::shape(dw_OI),
      "pass float of [" + std::to_string(dy.size(1)) + ", " + std::to_string(x.size(1)) + "]");
  if (dw_OI.is_meta() || dy.is_meta()) return;
  at::Tensor dw = dw_OI.view({dy.size(1), x.size(1)});
  const Way how = way(x.scalar_type(), at::kFloat);
  if (how == Way::ToFp32) {
    cpu::gemm_to_fp32(dy.contiguous(), true, x.contiguous(), false, dw, accumulate, scale);
  } else if (how == Way::Widened) {
    cpu::widened_weight_grad(dy, x, dw, accumulate, scale);
  } else if (accumulate) {
    dw.addmm_(dy.t(), x, 1.0, scale);
  } else {
    at::mm_out(dw, dy.t(), x);
    if (scale != 1.0F) dw.mul_(scale);
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
