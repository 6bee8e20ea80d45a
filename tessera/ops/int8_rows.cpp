// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/int8_rows.h"

#include <algorithm>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/ops/arguments.h"
#include "tessera/ops/backend.h"
#include "tessera/ops/cost.h"
#include "tessera/ops/embedding.h"
#include "tessera/ops/op_log.h"

namespace tessera::ops {
namespace {

constexpr double kLargest = 127.0;
/// Number of rows converted to fp32 at a time.
constexpr std::int64_t kRows = 4096;
at::Tensor widened(const at::Tensor& rows_NI, const at::Tensor& scales_N, at::ScalarType dtype) {
  at::Tensor out = at::empty(rows_NI.sizes(), rows_NI.options().dtype(dtype));
  backend(rows_NI.device()).widen_int8(rows_NI, scales_N, out);
  return out;
}

}  // namespace

at::Tensor largest_of_rows(const at::Tensor& weight_OI) {
  const std::int64_t O = weight_OI.size(0);
  const at::Tensor out = at::empty({O}, weight_OI.options().dtype(at::kFloat));
  for (std::int64_t row = 0; row < O; row += kRows) {
    const std::int64_t count = std::min(kRows, O - row);
    out.narrow(0, row, count).copy_(weight_OI.narrow(0, row, count).to(at::kFloat).abs().amax(1));
  }
  TESSERA_REQUIRE(at::isfinite(out).all().item<bool>(),
                  Numeric,
                  "a weight is not finite",
                  "look for it with: tessera inspect");
  return out;
}

Int8Rows to_int8(const at::Tensor& weight_OI, const at::Tensor& largest_O) {
  const std::int64_t O = weight_OI.size(0);
  const at::Tensor largest = largest_O.defined() ? largest_O : largest_of_rows(weight_OI);
  Int8Rows out{at::empty(weight_OI.sizes(), weight_OI.options().dtype(at::kChar)),
               largest / kLargest};
  // A row of zeros has scale 0; any other divisor gives its zeros.
  const at::Tensor divisors =
      at::where(out.scales_O > 0, out.scales_O, at::ones_like(out.scales_O)).unsqueeze(1);
  for (std::int64_t row = 0; row < O; row += kRows) {
    const std::int64_t count = std::min(kRows, O - row);
    const at::Tensor values = weight_OI.narrow(0, row, count).to(at::kFloat);
    out.rows_OI.narrow(0, row, count)
        .copy_((values / divisors.narrow(0, row, count)).round_().clamp_(-kLargest, kLargest));
  }
  return out;
}

at::Tensor from_int8(const Int8Rows& matrix, at::ScalarType dtype) {
  return widened(matrix.rows_OI, matrix.scales_O, dtype);
}

void from_int8(const Int8Rows& matrix, const at::Tensor& out) {
  TESSERA_ASSERT(out.is_contiguous() && out.sizes() == matrix.rows_OI.sizes());
  backend(out.device()).widen_int8(matrix.rows_OI, matrix.scales_O, out);
}

at::Tensor linear_int8(const at::Tensor& x_NI,
                       const Int8Rows& matrix,
                       const at::Tensor& bias_O,
                       std::optional<at::ScalarType> out_dtype) {
  const std::int64_t O = matrix.rows_OI.size(0), I = matrix.rows_OI.size(1);
  TESSERA_REQUIRE(x_NI.size(-1) == I,
                  Shape,
                  "linear_int8 of " + shape(x_NI) + " and " + shape(matrix.rows_OI),
                  "give both the same inner size");
  const OpScope scope("linear int8", [&] {
    const double N = static_cast<double>(x_NI.numel()) / static_cast<double>(I);
    return OpWork{.flops = 2.0 * N * static_cast<double>(I * O),
                  .bytes = static_cast<double>(x_NI.nbytes() + matrix.rows_OI.nbytes()) +
                           N * static_cast<double>(O) * static_cast<double>(x_NI.element_size()),
                  .shape = fmt::format("{} x {} -> {}", x_NI.numel() / I, I, O),
                  .shape_class = class_of_product(x_NI.numel() / I, I, O),
                  .dtype = DType::I8};
  });
  return backend(x_NI.device())
      .linear_int8(x_NI, matrix, bias_O, out_dtype.value_or(x_NI.scalar_type()));
}

at::Tensor embedding_int8(const Int8Rows& table, const at::Tensor& ids_N, at::ScalarType dtype) {
  const at::Tensor rows = ops::embedding(table.rows_OI, ids_N);
  return widened(rows, table.scales_O.index_select(0, ids_N.reshape({-1})), dtype);
}

}  // namespace tessera::ops
