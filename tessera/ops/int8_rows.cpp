// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/int8_rows.h"

#include <algorithm>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/ops/cpu/few_rows.h"
#include "tessera/ops/cpu/tensors.h"
#include "tessera/ops/embedding.h"
#include "tessera/ops/linear.h"
#include "tessera/ops/op_log.h"

namespace tessera::ops {
namespace {

constexpr double kLargest = 127.0;
/// Rows that are in fp32 at a time.
constexpr std::int64_t kRows = 4096;
/// Elements that make a share of work worth a thread.
constexpr std::int64_t kGrainElements = 32768;

at::Tensor widened(const at::Tensor& rows_NI, const at::Tensor& scales_N, at::ScalarType dtype) {
  const at::Tensor rows = rows_NI.contiguous(), scales = cpu::plain_float(scales_N);
  at::Tensor out = at::empty(rows.sizes(), dtype);
  const cpu::Int8Widening all{.rows = rows.const_data_ptr<std::int8_t>(),
                              .scales = scales.const_data_ptr<float>(),
                              .columns = rows.size(1),
                              .to = out.data_ptr()};
  const auto kernel = cpu::kernels().widen_int8[cpu::float_of(out)];
  cpu::parallel(rows.size(0),
                kGrainElements / std::max<std::int64_t>(1, rows.size(1)),
                [&](std::int64_t begin, std::int64_t end) { kernel(all, begin, end); });
  return out;
}

}  // namespace

Int8Rows to_int8(const at::Tensor& weight_OI) {
  const std::int64_t O = weight_OI.size(0);
  Int8Rows out{at::empty(weight_OI.sizes(), at::kChar), at::empty({O}, at::kFloat)};
  for (std::int64_t row = 0; row < O; row += kRows) {
    const std::int64_t count = std::min(kRows, O - row);
    const at::Tensor values = weight_OI.narrow(0, row, count).to(at::kFloat);
    const at::Tensor largest = std::get<0>(values.abs().max(1));
    TESSERA_REQUIRE(at::isfinite(largest).all().item<bool>(),
                    Numeric,
                    "a weight is not finite",
                    "look for it with: tessera inspect");
    const at::Tensor scales = largest / kLargest;
    // A row of zeros has no scale; any divisor gives its zeros.
    const at::Tensor divisors = at::where(scales > 0, scales, at::ones_like(scales));
    out.scales_O.narrow(0, row, count).copy_(scales);
    out.rows_OI.narrow(0, row, count)
        .copy_((values / divisors.unsqueeze(1)).round_().clamp_(-kLargest, kLargest));
  }
  return out;
}

at::Tensor from_int8(const Int8Rows& matrix, at::ScalarType dtype) {
  return widened(matrix.rows_OI, matrix.scales_O, dtype);
}

at::Tensor linear_int8(const at::Tensor& x_NI,
                       const Int8Rows& matrix,
                       const at::Tensor& bias_O,
                       std::optional<at::ScalarType> out_dtype) {
  const std::int64_t O = matrix.rows_OI.size(0), I = matrix.rows_OI.size(1);
  TESSERA_REQUIRE(x_NI.size(-1) == I,
                  Shape,
                  "linear_int8 of " + cpu::shape(x_NI) + " and " + cpu::shape(matrix.rows_OI),
                  "give both the same inner size");
  const OpScope scope("linear int8", [&] {
    const double N = static_cast<double>(x_NI.numel()) / static_cast<double>(I);
    return OpWork{.flops = 2.0 * N * static_cast<double>(I * O),
                  .bytes = static_cast<double>(x_NI.nbytes() + matrix.rows_OI.nbytes()) +
                           N * static_cast<double>(O) * static_cast<double>(x_NI.element_size()),
                  .shape = fmt::format("{} x {} -> {}", x_NI.numel() / I, I, O)};
  });
  if (!cpu::few_rows_fit(x_NI, matrix.rows_OI))
    return ops::linear(x_NI, from_int8(matrix, x_NI.scalar_type()), bias_O, out_dtype);
  return cpu::few_rows_linear(
      x_NI, matrix.rows_OI, matrix.scales_O, bias_O, out_dtype.value_or(x_NI.scalar_type()));
}

at::Tensor embedding_int8(const Int8Rows& table, const at::Tensor& ids_N, at::ScalarType dtype) {
  const at::Tensor rows = ops::embedding(table.rows_OI, ids_N);
  return widened(rows, table.scales_O.index_select(0, ids_N.reshape({-1})), dtype);
}

}  // namespace tessera::ops
