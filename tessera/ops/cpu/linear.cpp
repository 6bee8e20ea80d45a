// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/linear.h"

#include <vector>

#include "tessera/ops/cpu/backend.h"
#include "tessera/ops/cpu/few_rows.h"
#include "tessera/ops/cpu/gemm.h"
#include "tessera/ops/cpu/isa.h"
#include "tessera/ops/cpu/matmul.h"
#include "tessera/ops/cpu/row_blocks.h"
#include "tessera/ops/cpu/tensors.h"
#include "tessera/ops/cpu/widened.h"

namespace tessera::ops::cpu {
namespace {

at::Tensor rows_of(const at::Tensor& x) {
  return x.reshape({-1, x.size(-1)});
}

/// The kernel with which this CPU computes a product of these operands.
enum class Way {
  Aten,     ///< in the operands' dtype
  OneDnn,   ///< bf16 or fp32 operands, bf16 or fp32 result; for bf16 some shapes with MKL
  Mkl,      ///< fp16 operands, fp32 result
  Widened,  ///< operands are widened to fp32
};
Way way(at::ScalarType in, at::ScalarType out) {
  if (in == at::kFloat) return onednn_fp32() && out == in ? Way::OneDnn : Way::Aten;
  if (in == at::kBFloat16) return native_bf16() ? Way::OneDnn : Way::Widened;
  if (out == at::kFloat && native_fp16_to_fp32() && has_gemm_to_fp32(in)) return Way::Mkl;
  return out == in && native_fp16() ? Way::Aten : Way::Widened;
}

/// Makes rows or columns contiguous, as oneDNN requires.
at::Tensor dense(const at::Tensor& x) {
  return x.stride(-1) == 1 || x.stride(0) == 1 ? x : x.contiguous();
}

// The shapes for which MKL's bf16 product is faster than oneDNN's. Only the shape decides, so that
// a shape always gives the same bits; docs/decisions/0011 has the measurements. MKL returns fp32: a
// bf16 result takes one more pass, which pays off for sums of many terms.
constexpr std::int64_t kMklRows = 768, kMklTerms = 3072;

bool suits_mkl(const at::Tensor& x) {
  return x.scalar_type() == at::kBFloat16 && x.size(0) >= kMklRows && native_bf16_to_fp32() &&
         has_gemm_to_fp32(at::kBFloat16);
}

/// y_MN = a_MK op(b) + bias_N for bf16 operands, y bf16 or fp32; op transposes if requested.
void product_by_mkl(const at::Tensor& a_MK,
                    const at::Tensor& b,
                    bool transpose_b,
                    const at::Tensor& bias_N,
                    const at::Tensor& y_MN) {
  const bool wide = y_MN.scalar_type() == at::kFloat;
  at::Tensor sums = wide ? y_MN : at::empty(y_MN.sizes(), y_MN.options().dtype(at::kFloat));
  // In MKL, clearing and adding is faster than overwriting.
  if (bias_N.defined()) {
    sums.copy_(bias_N.expand_as(sums));
  } else {
    sums.zero_();
  }
  gemm_to_fp32(a_MK.contiguous(), false, b.contiguous(), transpose_b, sums, true);
  if (!wide) y_MN.copy_(sums);
}

/// dw_OI = scale * dy_NO^T x_NI + (accumulate ? dw_OI : 0).
void dot_weight_grad(const at::Tensor& dy_NO,
                     const at::Tensor& x_NI,
                     const at::Tensor& dw_OI,
                     bool accumulate,
                     float scale) {
  if (!suits_mkl(dy_NO)) {
    matmul(dense(dy_NO).t(), dense(x_NI), dw_OI, {.accumulate = accumulate, .scale = scale});
    return;
  }
  if (!accumulate) dw_OI.zero_();
  gemm_to_fp32(dy_NO.contiguous(), true, x_NI.contiguous(), false, dw_OI, true, scale);
}

/// The sizes of `x` with the last one replaced: the shape of a result.
std::vector<std::int64_t> with_last(const at::Tensor& x, std::int64_t last) {
  std::vector<std::int64_t> sizes = x.sizes().vec();
  sizes.back() = last;
  return sizes;
}

}  // namespace

at::Tensor CpuBackend::linear(const at::Tensor& x_NI,
                              const at::Tensor& weight_OI,
                              const at::Tensor& bias_O,
                              at::ScalarType out_dtype) const {
  if (few_rows_fit(x_NI, weight_OI)) return few_rows_linear(x_NI, weight_OI, {}, bias_O, out_dtype);
  const Way how = way(x_NI.scalar_type(), out_dtype);
  if (how == Way::Aten) {
    const at::Tensor bias = bias_O.defined() ? bias_O.to(x_NI.scalar_type()) : at::Tensor();
    return at::linear(x_NI, weight_OI, bias).to(out_dtype);
  }
  const at::Tensor x = rows_of(x_NI);
  const at::Tensor y = at::empty({x.size(0), weight_OI.size(0)}, x.options().dtype(out_dtype));
  if (how == Way::OneDnn && x.size(1) >= kMklTerms && suits_mkl(x)) {
    product_by_mkl(x, weight_OI, true, bias_O, y);
  } else if (how == Way::OneDnn) {
    matmul(dense(x), dense(weight_OI).t(), y, {.bias_N = bias_O});
  } else if (how == Way::Mkl) {
    gemm_to_fp32(x.contiguous(), false, weight_OI.contiguous(), true, y, false);
    if (bias_O.defined()) y.add_(bias_O);
  } else {
    widened_linear(x, weight_OI, bias_O, y);
  }
  return y.view(with_last(x_NI, weight_OI.size(0)));
}

bool CpuBackend::products_to_fp32(at::ScalarType dtype) const {
  return way(dtype, at::kFloat) != Way::Widened;
}

at::Tensor CpuBackend::linear_input_grad(const at::Tensor& dy_NO,
                                         const at::Tensor& weight_OI) const {
  const at::ScalarType dtype = dy_NO.scalar_type();
  const Way how = way(dtype, dtype);
  if (how == Way::Aten) return at::matmul(dy_NO, weight_OI);
  if (how == Way::OneDnn) {
    const at::Tensor dy = rows_of(dy_NO);
    const at::Tensor dx = at::empty({dy.size(0), weight_OI.size(1)}, dy.options());
    if (dy.size(1) >= kMklTerms && suits_mkl(dy)) {
      product_by_mkl(dy, weight_OI, false, {}, dx);
    } else {
      matmul(dense(dy), dense(weight_OI), dx);
    }
    return dx.view(with_last(dy_NO, weight_OI.size(1)));
  }
  return widened_input_grad(rows_of(dy_NO), weight_OI)
      .to(dtype)
      .view(with_last(dy_NO, weight_OI.size(1)));
}

void CpuBackend::linear_weight_grad(const at::Tensor& dy_NO,
                                    const at::Tensor& x_NI,
                                    bool accumulate,
                                    float scale,
                                    const at::Tensor& dw_OI) const {
  const Way how = way(x_NI.scalar_type(), at::kFloat);
  if (how == Way::OneDnn) {
    dot_weight_grad(dy_NO, x_NI, dw_OI, accumulate, scale);
  } else if (how == Way::Mkl) {
    gemm_to_fp32(dy_NO.contiguous(), true, x_NI.contiguous(), false, dw_OI, accumulate, scale);
  } else if (how == Way::Widened) {
    widened_weight_grad(dy_NO, x_NI, dw_OI, accumulate, scale);
  } else {
    dw_OI.addmm_(dy_NO.t(), x_NI, accumulate ? 1.0 : 0.0, scale);
  }
}

std::int64_t CpuBackend::product_scratch(Product product,
                                         const at::Tensor& a_MK,
                                         const at::Tensor& b_KN,
                                         at::ScalarType out,
                                         bool accumulate) const {
  const std::int64_t M = a_MK.size(0), K = a_MK.size(1), N = b_KN.size(1);
  const bool scaled = product == Product::ScaledWeightGrad,
             of_weight = scaled || product == Product::WeightGrad;
  if (product == Product::Linear && few_rows_fit(a_MK, b_KN.t())) return 0;
  const at::ScalarType in = a_MK.scalar_type();
  const Way how = way(in, out);
  if (how == Way::Mkl) return 0;
  if (how == Way::Aten)
    return out == in ? 0 : M * N * static_cast<std::int64_t>(c10::elementSize(in));
  if (how == Way::Widened) {
    if (of_weight) return widened_floats(M, K, N) * 4;
    return product == Product::Linear ? 4 * widened_floats(N, K, M) + (out == in ? 4 * M * N : 0)
                                      : 4 * (widened_floats(K, M, N) + M * N);
  }
  if (of_weight ? suits_mkl(a_MK.t()) : K >= kMklTerms && suits_mkl(a_MK))
    return out == at::kFloat ? 0 : 4 * M * N;
  // Any factor but 1.
  return matmul_scratch(a_MK, b_KN, out, {.accumulate = accumulate, .scale = scaled ? 0.5F : 1.0F});
}

void CpuBackend::linear_bias_grad(const at::Tensor& dy_NO,
                                  bool accumulate,
                                  const at::Tensor& db_O) const {
  const at::Tensor dy = dy_NO.contiguous();
  const std::int64_t O = dy.size(1);
  auto* to = db_O.data_ptr<float>();
  const RowBlocks blocks{dy.size(0)};
  const at::Tensor partial = at::zeros({blocks.count(), O}, dy.options().dtype(at::kFloat));
  float* sums = partial.data_ptr<float>();
  const auto kernel = kernels().column_sums[float_of(dy)];
  parallel(blocks.count(), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t block = begin; block < end; ++block) {
      kernel(dy.data_ptr(), O, sums + block * O, blocks.begin(block), blocks.end(block));
    }
  });
  reduce_blocks(sums, blocks.count(), O, O, accumulate, to);
}

at::Tensor BatchInvariantBackend::linear(const at::Tensor& x_NI,
                                         const at::Tensor& weight_OI,
                                         const at::Tensor& bias_O,
                                         at::ScalarType out_dtype) const {
  if (x_NI.numel() == 0) return CpuBackend::linear(x_NI, weight_OI, bias_O, out_dtype);
  return linear_by_rows(x_NI, weight_OI, bias_O, out_dtype);
}

std::int64_t BatchInvariantBackend::product_scratch(Product product,
                                                    const at::Tensor& a_MK,
                                                    const at::Tensor& b_KN,
                                                    at::ScalarType out,
                                                    bool accumulate) const {
  if (product != Product::Linear)
    return CpuBackend::product_scratch(product, a_MK, b_KN, out, accumulate);
  return linear_by_rows_scratch(a_MK, b_KN.t(), out);
}

}  // namespace tessera::ops::cpu
