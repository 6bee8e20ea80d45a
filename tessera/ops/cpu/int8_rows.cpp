// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/int8_rows.h"

#include <algorithm>

#include "tessera/ops/cpu/backend.h"
#include "tessera/ops/cpu/few_rows.h"
#include "tessera/ops/cpu/tensors.h"

namespace tessera::ops::cpu {
namespace {

/// Minimum number of elements that justifies another thread.
constexpr std::int64_t kWidenGrainElements = 32768;

}  // namespace

void CpuBackend::widen_int8(const at::Tensor& rows_NI,
                            const at::Tensor& scales_N,
                            const at::Tensor& out_NI) const {
  const at::Tensor rows = rows_NI.contiguous(), scales = plain_float(scales_N);
  const Int8Widening all{.rows = rows.const_data_ptr<std::int8_t>(),
                         .scales = scales.const_data_ptr<float>(),
                         .columns = rows.size(1),
                         .to = out_NI.data_ptr()};
  const auto kernel = kernels().widen_int8[float_of(out_NI)];
  parallel(rows.size(0),
           kWidenGrainElements / std::max<std::int64_t>(1, rows.size(1)),
           [&](std::int64_t begin, std::int64_t end) { kernel(all, begin, end); });
}

at::Tensor CpuBackend::linear_int8(const at::Tensor& x_NI,
                                   const Int8Rows& matrix,
                                   const at::Tensor& bias_O,
                                   at::ScalarType out_dtype) const {
  if (!few_rows_fit(x_NI, matrix.rows_OI))
    return linear(x_NI, from_int8(matrix, x_NI.scalar_type()), bias_O, out_dtype);
  return few_rows_linear(x_NI, matrix.rows_OI, matrix.scales_O, bias_O, out_dtype);
}

}  // namespace tessera::ops::cpu
