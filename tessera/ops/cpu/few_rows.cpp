// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/cpu/few_rows.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include <ATen/ATen.h>

#include "tessera/ops/arguments.h"
#include "tessera/ops/cpu/isa.h"
#include "tessera/ops/cpu/tensors.h"

namespace tessera::ops::cpu {
namespace {

/// Beyond this number of rows a library's product, which packs, is faster.
constexpr std::int64_t kMostRows = 8;
/// Minimum number of matrix elements that justifies another thread.
constexpr std::int64_t kGrainElements = 32768;

bool is_float(at::ScalarType dtype) {
  return dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf;
}

/// Memory for fp32 copies of narrower inputs, allocated as a whole, because calls into libtorch
/// take longer.
class Room {
 public:
  explicit Room(std::int64_t floats)
      : memory_(floats > 0 ? at::empty({floats}, at::kFloat) : at::Tensor()),
        next_(floats > 0 ? memory_.data_ptr<float>() : nullptr) {}
  float* take(std::int64_t floats) { return std::exchange(next_, next_ + floats); }
  /// The elements of a contiguous tensor as fp32; nullptr for an undefined one.
  const float* wide(const at::Tensor& x) {
    if (!x.defined()) return nullptr;
    if (x.scalar_type() == at::kFloat) return x.data_ptr<float>();
    float* const to = take(x.numel());
    kernels().widen_rows[float_of(x)]({x.data_ptr(), 0}, x.numel(), to, 1);
    return to;
  }

 private:
  at::Tensor memory_;
  float* next_;
};

std::int64_t room_of(const at::Tensor& x) {
  return x.defined() && x.scalar_type() != at::kFloat ? x.numel() : 0;
}

/// y = (x weight_OI^T) * scales_O + bias_O for contiguous x [..., I] and y [..., O].
void multiply(const at::Tensor& x,
              const at::Tensor& weight_OI,
              const at::Tensor& scales_O,
              const at::Tensor& bias_O,
              const at::Tensor& y) {
  const std::int64_t I = weight_OI.size(1), O = weight_OI.size(0);
  TESSERA_REQUIRE(
      weight_OI.is_contiguous() && x.size(-1) == I &&
          (!scales_O.defined() || (scales_O.numel() == O && scales_O.is_contiguous())) &&
          (!bias_O.defined() || (bias_O.numel() == O && bias_O.is_contiguous())),
      Shape,
      "the product of " + shape(x) + " and " + shape(weight_OI),
      "expected a row-major matrix with one scale and one bias a row");
  const bool narrow = y.scalar_type() != at::kFloat;
  Room room(room_of(x) + room_of(scales_O) + room_of(bias_O) + (narrow ? y.numel() : 0));
  const RowProducts rows{.x = room.wide(x),
                         .vectors = x.numel() / I,
                         .inputs = I,
                         .outputs = O,
                         .weight = weight_OI.data_ptr(),
                         .scales = room.wide(scales_O),
                         .bias = room.wide(bias_O),
                         .y = narrow ? room.take(y.numel()) : y.data_ptr<float>()};
  const auto kernel = weight_OI.scalar_type() == at::kChar
                          ? kernels().row_products_int8
                          : kernels().row_products[float_of(weight_OI)];
  parallel(O,
           std::max<std::int64_t>(1, kGrainElements / I),
           [&](std::int64_t begin, std::int64_t end) { kernel(rows, begin, end); });
  if (narrow) kernels().round_rows[float_of(y)](rows.y, nullptr, y.numel(), {y.data_ptr(), 0}, 1);
}

/// Number of rows of `inputs` floats that stay in a core's second-level cache while the matrix
/// passes.
std::int64_t rows_at_once(std::int64_t inputs) {
  constexpr std::int64_t kFloatsInCache = 96 * 1024, kLeast = 8;
  return std::max(kLeast, kFloatsInCache / inputs / kLeast * kLeast);
}

}  // namespace

bool few_rows_fit(const at::Tensor& x, const at::Tensor& weight_OI) {
  const std::int64_t I = weight_OI.size(1);
  return isa() != Isa::Portable && I > 0 && x.numel() > 0 && x.numel() <= kMostRows * I &&
         weight_OI.is_contiguous() && is_float(x.scalar_type()) &&
         (is_float(weight_OI.scalar_type()) || weight_OI.scalar_type() == at::kChar);
}

at::Tensor few_rows_linear(const at::Tensor& x,
                           const at::Tensor& weight_OI,
                           const at::Tensor& scales_O,
                           const at::Tensor& bias_O,
                           at::ScalarType out_dtype) {
  c10::SmallVector<std::int64_t, 4> sizes(x.sizes().begin(), x.sizes().end());
  sizes.back() = weight_OI.size(0);
  at::Tensor y = at::empty(sizes, x.options().dtype(out_dtype));
  multiply(x.contiguous(), weight_OI, scales_O, bias_O, y);
  return y;
}

bool few_rows_of_experts_fit(const at::Tensor& x_QI,
                             const at::Tensor& weight_EOI,
                             const std::vector<RowsOfExpert>& units) {
  const auto few = [](const RowsOfExpert& unit) { return unit.rows <= kMostRows; };
  return isa() != Isa::Portable && x_QI.numel() > 0 && weight_EOI.numel() > 0 && x_QI.dim() == 2 &&
         weight_EOI.dim() == 3 && x_QI.size(1) == weight_EOI.size(2) &&
         weight_EOI.is_contiguous() && is_float(x_QI.scalar_type()) &&
         (weight_EOI.scalar_type() == x_QI.scalar_type() ||
          weight_EOI.scalar_type() == at::kChar) &&
         std::all_of(units.begin(), units.end(), few);
}

at::Tensor few_rows_of_experts(const at::Tensor& x_QI,
                               const ExpertMatrices& matrices,
                               const std::vector<RowsOfExpert>& units) {
  const at::Tensor& weight = matrices.weight_EOI;
  const std::int64_t Q = x_QI.size(0), O = weight.size(1), I = weight.size(2);
  const at::Tensor x = x_QI.contiguous();
  at::Tensor y_QO = at::empty({Q, O}, x.options());
  const bool narrow = y_QO.scalar_type() != at::kFloat;
  Room room(room_of(x) + room_of(matrices.scales_EO) + room_of(matrices.bias_EO) +
            (narrow ? Q * O : 0));
  const float* const from = room.wide(x);
  const float* const scales = room.wide(matrices.scales_EO);
  const float* const bias = room.wide(matrices.bias_EO);
  float* const to = narrow ? room.take(Q * O) : y_QO.data_ptr<float>();
  const auto kernel = weight.scalar_type() == at::kChar ? kernels().row_products_int8
                                                        : kernels().row_products[float_of(weight)];
  const auto* const bytes = static_cast<const std::byte*>(weight.const_data_ptr());
  const auto matrix = O * I * static_cast<std::int64_t>(weight.element_size());
  const auto product_of = [&](const RowsOfExpert& unit) {
    return RowProducts{.x = from + unit.begin * I,
                       .vectors = unit.rows,
                       .inputs = I,
                       .outputs = O,
                       .weight = bytes + unit.expert * matrix,
                       .scales = scales == nullptr ? nullptr : scales + unit.expert * O,
                       .bias = bias == nullptr ? nullptr : bias + unit.expert * O,
                       .y = to + unit.begin * O};
  };
  parallel(std::ssize(units) * O,
           std::max<std::int64_t>(1, kGrainElements / I),
           [&](std::int64_t begin, std::int64_t end) {
             while (begin < end) {
               const std::int64_t first = begin % O, last = std::min(O, first + end - begin);
               kernel(product_of(units[static_cast<std::size_t>(begin / O)]), first, last);
               begin += last - first;
             }
           });
  if (narrow) kernels().round_rows[float_of(y_QO)](to, nullptr, Q * O, {y_QO.data_ptr(), 0}, 1);
  return y_QO;
}

at::Tensor linear_by_rows(const at::Tensor& x,
                          const at::Tensor& weight_OI,
                          const at::Tensor& bias_O,
                          at::ScalarType out_dtype) {
  const std::int64_t I = weight_OI.size(1), O = weight_OI.size(0), N = x.numel() / I;
  const at::Tensor from_NI = x.contiguous().view({N, I}), matrix_OI = weight_OI.contiguous(),
                   bias = bias_O.defined() ? bias_O.contiguous() : bias_O;
  c10::SmallVector<std::int64_t, 4> sizes(x.sizes().begin(), x.sizes().end());
  sizes.back() = O;
  at::Tensor y = at::empty(sizes, x.options().dtype(out_dtype));
  const at::Tensor y_NO = y.view({N, O});
  const std::int64_t step = rows_at_once(I);
  for (std::int64_t row = 0; row < N; row += step) {
    const std::int64_t rows = std::min(step, N - row);
    multiply(from_NI.narrow(0, row, rows), matrix_OI, {}, bias, y_NO.narrow(0, row, rows));
  }
  return y;
}

std::int64_t linear_by_rows_scratch(const at::Tensor& x,
                                    const at::Tensor& weight_OI,
                                    at::ScalarType out_dtype) {
  const std::int64_t I = weight_OI.size(1), O = weight_OI.size(0), N = x.numel() / I,
                     rows = std::min(rows_at_once(I), N);
  std::int64_t floats = x.scalar_type() == at::kFloat ? 0 : rows * I;
  if (out_dtype != at::kFloat) floats += rows * O;
  std::int64_t bytes = floats * static_cast<std::int64_t>(sizeof(float));
  if (!x.is_contiguous()) bytes += static_cast<std::int64_t>(x.nbytes());
  if (!weight_OI.is_contiguous()) bytes += static_cast<std::int64_t>(weight_OI.nbytes());
  return bytes;
}

}  // namespace tessera::ops::cpu
