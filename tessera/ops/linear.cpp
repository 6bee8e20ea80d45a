// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/linear.h"

#include <vector>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/ops/arguments.h"
#include "tessera/ops/backend.h"
#include "tessera/ops/cost.h"
#include "tessera/ops/meta_device.h"
#include "tessera/ops/op_log.h"
#include "tessera/ops/op_trace.h"
#include "tessera/tensor/dtype.h"

namespace tessera::ops {
namespace {

void check(const at::Tensor& a, const at::Tensor& b, std::int64_t a_size, std::int64_t b_size) {
  TESSERA_REQUIRE(a_size == b_size && a.scalar_type() == b.scalar_type(),
                  Shape,
                  std::string("linear: ") + c10::toString(a.scalar_type()) + shape(a) +
                      " does not go with " + c10::toString(b.scalar_type()) + shape(b),
                  "give both the same dtype and the same inner size");
}

at::Tensor rows_of(const at::Tensor& x) {
  return x.reshape({-1, x.size(-1)});
}

/// The sizes of `x` with the last one replaced: the shape of a result.
std::vector<std::int64_t> with_last(const at::Tensor& x, std::int64_t last) {
  std::vector<std::int64_t> sizes = x.sizes().vec();
  sizes.back() = last;
  return sizes;
}

/// The work of a product of x [N, I] and a weight [O, I] in either direction; `a` and `b` are its
/// operands.
OpWork work_of(std::int64_t N,
               std::int64_t I,
               std::int64_t O,
               const at::Tensor& a,
               const at::Tensor& b,
               double result_bytes) {
  return {.flops = 2.0 * static_cast<double>(N) * static_cast<double>(I) * static_cast<double>(O),
          .bytes = static_cast<double>(a.nbytes()) + static_cast<double>(b.nbytes()) + result_bytes,
          .shape = fmt::format("{} x {} -> {}", N, I, O),
          .shape_class = class_of_product(N, I, O),
          .dtype = from_torch(a.scalar_type())};
}

/// The scratch memory of the kernels for a product, allocated on meta.
at::Tensor scratch_of(Backend::Product product,
                      const at::Tensor& a_MK,
                      const at::Tensor& b_KN,
                      at::ScalarType out,
                      bool accumulate = false) {
  return meta_scratch(
      a_MK.numel() == 0 ? 0 : meta_backend().product_scratch(product, a_MK, b_KN, out, accumulate));
}

}  // namespace

at::Tensor linear(const at::Tensor& x_NI,
                  const at::Tensor& weight_OI,
                  const at::Tensor& bias_O,
                  std::optional<at::ScalarType> out_dtype) {
  check(x_NI, weight_OI, x_NI.size(-1), weight_OI.size(-1));
  const at::ScalarType in = x_NI.scalar_type(), out = out_dtype.value_or(in);
  const OpScope scope("linear", [&] {
    const std::int64_t I = weight_OI.size(1), O = weight_OI.size(0), N = x_NI.numel() / I;
    const auto width = static_cast<double>(c10::elementSize(out));
    return work_of(N, I, O, x_NI, weight_OI, static_cast<double>(N * O) * width);
  });
  if (x_NI.is_meta()) {
    const at::Tensor scratch =
        scratch_of(Backend::Product::Linear, rows_of(x_NI), weight_OI.t(), out);
    return at::empty(with_last(x_NI, weight_OI.size(0)), x_NI.options().dtype(out));
  }
  at::Tensor y = backend(x_NI.device()).linear(x_NI, weight_OI, bias_O, out);
  trace_call("tessera::linear",
             [&] {
               return std::vector<c10::IValue>{x_NI, weight_OI, bias_O};
             },
             {y});
  return y;
}

bool products_to_fp32(at::ScalarType dtype, at::Device device) {
  return backend(device).products_to_fp32(dtype);
}

at::Tensor linear_input_grad(const at::Tensor& dy_NO, const at::Tensor& weight_OI) {
  check(dy_NO, weight_OI, dy_NO.size(-1), weight_OI.size(0));
  const OpScope scope("linear dx", [&] {
    const std::int64_t O = weight_OI.size(0), I = weight_OI.size(1), N = dy_NO.numel() / O;
    const auto width = static_cast<double>(dy_NO.element_size());
    return work_of(N, I, O, dy_NO, weight_OI, static_cast<double>(N * I) * width);
  });
  if (dy_NO.is_meta()) {
    const at::Tensor scratch =
        scratch_of(Backend::Product::InputGrad, rows_of(dy_NO), weight_OI, dy_NO.scalar_type());
    return at::empty(with_last(dy_NO, weight_OI.size(1)), dy_NO.options());
  }
  return backend(dy_NO.device()).linear_input_grad(dy_NO, weight_OI);
}

void linear_weight_grad(const at::Tensor& dy_NO,
                        const at::Tensor& x_NI,
                        const at::Tensor& dw_OI,
                        bool accumulate,
                        float scale) {
  const OpScope scope("linear dW", [&] {
    const std::int64_t I = x_NI.size(-1), O = dy_NO.size(-1), N = dy_NO.numel() / O;
    const double passes = accumulate ? 2.0 : 1.0;  // the previous sums are read too
    return work_of(N, I, O, dy_NO, x_NI, passes * static_cast<double>(dw_OI.nbytes()));
  });
  const at::Tensor dy = rows_of(dy_NO), x = rows_of(x_NI);
  check(dy, x, dy.size(0), x.size(0));
  TESSERA_REQUIRE(
      dw_OI.scalar_type() == at::kFloat && dw_OI.numel() == dy.size(1) * x.size(1),
      Shape,
      "linear_weight_grad into " + shape(dw_OI),
      "pass float of [" + std::to_string(dy.size(1)) + ", " + std::to_string(x.size(1)) + "]");
  if (dw_OI.is_meta() || dy.is_meta()) {
    const bool scaled = scale != 1.0F;
    scratch_of(scaled ? Backend::Product::ScaledWeightGrad : Backend::Product::WeightGrad,
               dy.t(),
               x,
               at::kFloat,
               accumulate);
    return;
  }
  backend(dy.device())
      .linear_weight_grad(dy, x, accumulate, scale, dw_OI.view({dy.size(1), x.size(1)}));
}

void linear_bias_grad(const at::Tensor& dy_NO, const at::Tensor& db_O, bool accumulate) {
  const OpScope scope("linear db", [&] {
    return OpWork{.bytes = static_cast<double>(dy_NO.nbytes()), .shape = shape(dy_NO)};
  });
  if (dy_NO.is_meta()) return;
  const at::Tensor dy = rows_of(dy_NO);
  check_destination(db_O, dy.size(1), "the bias gradient");
  backend(dy.device()).linear_bias_grad(dy, accumulate, db_O);
}

}  // namespace tessera::ops
