// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/linear.h"

#include <vector>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/ops/cpu/few_rows.h"
#include "tessera/ops/cpu/gemm.h"
#include "tessera/ops/cpu/isa.h"
#include "tessera/ops/cpu/matmul.h"
#include "tessera/ops/cpu/row_blocks.h"
#include "tessera/ops/cpu/tensors.h"
#include "tessera/ops/cpu/widened.h"
#include "tessera/ops/op_log.h"

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
  OneDnn,   ///< bf16 or fp32 operands, bf16 or fp32 result; of bf16 some shapes by MKL
  Mkl,      ///< fp16 operands, fp32 result
  Widened,  ///< operands widened to fp32
};
Way way(at::ScalarType in, at::ScalarType out) {
  if (in == at::kFloat) return onednn_fp32() && out == in ? Way::OneDnn : Way::Aten;
  if (in == at::kBFloat16) return native_bf16() ? Way::OneDnn : Way::Widened;
  if (out == at::kFloat && native_fp16_to_fp32() && cpu::has_gemm_to_fp32(in)) return Way::Mkl;
  return out == in && native_fp16() ? Way::Aten : Way::Widened;
}

/// As oneDNN reads it: rows or columns without gaps.
at::Tensor dense(const at::Tensor& x) {
  return x.stride(-1) == 1 || x.stride(0) == 1 ? x : x.contiguous();
}

// Where MKL's product of bf16 is faster than oneDNN's, by shapes alone, so that a shape has the
// same bits wherever it occurs; docs/decisions/0011 has the figures. MKL leaves fp32: a result in
// bf16 takes one more pass, which sums of many terms are worth.
constexpr std::int64_t kMklRows = 768, kMklTerms = 3072;

bool suits_mkl(const at::Tensor& x) {
  return x.scalar_type() == at::kBFloat16 && x.size(0) >= kMklRows && native_bf16_to_fp32() &&
         cpu::has_gemm_to_fp32(at::kBFloat16);
}

/// y_MN = a_MK op(b) + bias_N of bf16, y bf16 or fp32; op transposes where asked.
void product_by_mkl(const at::Tensor& a_MK,
                    const at::Tensor& b,
                    bool transpose_b,
                    const at::Tensor& bias_N,
                    const at::Tensor& y_MN) {
  const bool wide = y_MN.scalar_type() == at::kFloat;
  at::Tensor sums = wide ? y_MN : at::empty(y_MN.sizes(), y_MN.options().dtype(at::kFloat));
  // Overwriting is slower in MKL than to clear and add.
  if (bias_N.defined()) {
    sums.copy_(bias_N.expand_as(sums));
  } else {
    sums.zero_();
  }
  cpu::gemm_to_fp32(a_MK.contiguous(), false, b.contiguous(), transpose_b, sums, true);
  if (!wide) y_MN.copy_(sums);
}

/// dw_OI = scale * dy_NO^T x_NI + (accumulate ? dw_OI : 0).
void weight_grad(const at::Tensor& dy_NO,
                 const at::Tensor& x_NI,
                 at::Tensor& dw_OI,
                 bool accumulate,
                 float scale) {
  if (!suits_mkl(dy_NO)) {
    cpu::matmul(dense(dy_NO).t(), dense(x_NI), dw_OI, {.accumulate = accumulate, .scale = scale});
    return;
  }
  if (!accumulate) dw_OI.zero_();
  cpu::gemm_to_fp32(dy_NO.contiguous(), true, x_NI.contiguous(), false, dw_OI, true, scale);
}

/// `x` with its last size replaced: the shape of a result.
std::vector<std::int64_t> with_last(const at::Tensor& x, std::int64_t last) {
  std::vector<std::int64_t> sizes = x.sizes().vec();
  sizes.back() = last;
  return sizes;
}

/// The product of x [N, I] and a weight [O, I] in either direction; `a` and `b` are its operands.
OpWork work_of(std::int64_t N,
               std::int64_t I,
               std::int64_t O,
               const at::Tensor& a,
               const at::Tensor& b,
               double result_bytes) {
  return {.flops = 2.0 * static_cast<double>(N) * static_cast<double>(I) * static_cast<double>(O),
          .bytes = static_cast<double>(a.nbytes()) + static_cast<double>(b.nbytes()) + result_bytes,
          .shape = fmt::format("{} x {} -> {}", N, I, O)};
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
  const OpScope scope("linear", [&] {
    const std::int64_t I = weight_OI.size(1), O = weight_OI.size(0), N = x_NI.numel() / I;
    const auto width = static_cast<double>(c10::elementSize(out));
    return work_of(N, I, O, x_NI, weight_OI, static_cast<double>(N * O) * width);
  });
  if (cpu::few_rows_fit(x_NI, weight_OI))
    return cpu::few_rows_linear(x_NI, weight_OI, {}, bias_O, out);
  const Way how = way(in, out);
  if (how == Way::Aten) {
    const at::Tensor bias = bias_O.defined() ? bias_O.to(in) : at::Tensor();
    return at::linear(x_NI, weight_OI, bias).to(out);
  }
  const at::Tensor x = rows_of(x_NI);
  const at::Tensor y = at::empty({x.size(0), weight_OI.size(0)}, x.options().dtype(out));
  if (how == Way::OneDnn && x.size(1) >= kMklTerms && suits_mkl(x)) {
    product_by_mkl(x, weight_OI, true, bias_O, y);
  } else if (how == Way::OneDnn) {
    cpu::matmul(dense(x), dense(weight_OI).t(), y, {.bias_N = bias_O});
  } else if (how == Way::Mkl) {
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
  const OpScope scope("linear dx", [&] {
    const std::int64_t O = weight_OI.size(0), I = weight_OI.size(1), N = dy_NO.numel() / O;
    const auto width = static_cast<double>(dy_NO.element_size());
    return work_of(N, I, O, dy_NO, weight_OI, static_cast<double>(N * I) * width);
  });
  const Way how = way(dtype, dtype);
  if (how == Way::Aten) return at::matmul(dy_NO, weight_OI);
  if (how == Way::OneDnn) {
    const at::Tensor dy = rows_of(dy_NO);
    const at::Tensor dx = at::empty({dy.size(0), weight_OI.size(1)}, dy.options());
    if (dy.size(1) >= kMklTerms && suits_mkl(dy)) {
      product_by_mkl(dy, weight_OI, false, {}, dx);
    } else {
      cpu::matmul(dense(dy), dense(weight_OI), dx);
    }
    return dx.view(sizes);
  }
  return cpu::widened_input_grad(rows_of(dy_NO), weight_OI).to(dtype).view(sizes);
}

void linear_weight_grad(const at::Tensor& dy_NO,
                        const at::Tensor& x_NI,
                        const at::Tensor& dw_OI,
                        bool accumulate,
                        float scale) {
  const OpScope scope("linear dW", [&] {
    const std::int64_t I = x_NI.size(-1), O = dy_NO.size(-1), N = dy_NO.numel() / O;
    const double passes = accumulate ? 2.0 : 1.0;  // the sums so far are read
    return work_of(N, I, O, dy_NO, x_NI, passes * static_cast<double>(dw_OI.nbytes()));
  });
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
  if (how == Way::OneDnn) {
    weight_grad(dy, x, dw, accumulate, scale);
  } else if (how == Way::Mkl) {
    cpu::gemm_to_fp32(dy.contiguous(), true, x.contiguous(), false, dw, accumulate, scale);
  } else if (how == Way::Widened) {
    cpu::widened_weight_grad(dy, x, dw, accumulate, scale);
  } else {
    dw.addmm_(dy.t(), x, accumulate ? 1.0 : 0.0, scale);
  }
}

void linear_bias_grad(const at::Tensor& dy_NO, const at::Tensor& db_O, bool accumulate) {
  if (dy_NO.is_meta()) return;
  const OpScope scope("linear db", [&] {
    return OpWork{.bytes = static_cast<double>(dy_NO.nbytes()), .shape = cpu::shape(dy_NO)};
  });
  const at::Tensor dy = rows_of(dy_NO).contiguous();
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
