// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/newton_schulz.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "tessera/comm/transport.h"
#include "tessera/ops/fused_adamw.h"
#include "tessera/ops/fused_rules.h"
#include "tessera/tensor/upload.h"

namespace tessera::ops {
namespace {

thread_local Device matrix_device;

/// Root of the sum of squares; the same bits for any number of threads.
double norm_of(const float* values, std::int64_t numel, Device device) {
  std::vector<double> sums(static_cast<std::size_t>((numel + kRuleChunk - 1) / kRuleChunk));
  chunk_square_sums(values, numel, kRuleChunk, sums.data(), device);
  double sum = 0.0;
  for (const double chunk : sums)
    sum += chunk;
  return std::sqrt(sum);
}

at::Tensor matrix_at(float* values, std::int64_t rows, std::int64_t columns) {
  return tensor_of({values, static_cast<std::size_t>(rows * columns), DType::F32, matrix_device})
      .view({rows, columns});
}

/// The iteration on a matrix whose root of the sum of squares is `norm`.
at::Tensor iterated(const at::Tensor& matrix, double norm, const NewtonSchulz& how) {
  const bool tall = matrix.size(0) > matrix.size(1);
  // A wide matrix is copied too, because products may depend on the alignment of their operands.
  at::Tensor x = (tall ? matrix.t() : matrix).clone(at::MemoryFormat::Contiguous);
  x.div_(std::max(norm, how.eps));
  for (int step = 0; step < how.steps; ++step) {
    const auto [a, b, c] =
        how.coefficients[static_cast<std::size_t>(step) % how.coefficients.size()];
    const at::Tensor gram = at::mm(x, x.t());
    x = at::addmm(x, at::addmm(gram, gram, gram, b, c), x, a, 1.0);
  }
  return (tall ? x.t() : x).contiguous();
}

}  // namespace

ScopedMatrixDevice::ScopedMatrixDevice(Device device)
    : before_(std::exchange(matrix_device, device)) {}

ScopedMatrixDevice::~ScopedMatrixDevice() {
  matrix_device = before_;
}

void orthogonalize(float* matrix_RC,
                   std::int64_t rows,
                   std::int64_t columns,
                   const NewtonSchulz& how) {
  const at::Tensor matrix = matrix_at(matrix_RC, rows, columns);
  matrix.copy_(iterated(matrix, norm_of(matrix_RC, rows * columns, matrix_device), how));
}

void orthogonalize_parts(float* matrix_RC,
                         std::int64_t columns,
                         const MatrixParts& parts,
                         const NewtonSchulz& how) {
  std::int64_t of_group = 0;
  for (const MatrixParts::Part& part : parts.parts)
    of_group += part.rows;
  const at::Tensor groups = matrix_at(matrix_RC, parts.groups * of_group, columns)
                                .view({parts.groups, of_group, columns});
  std::int64_t begin = 0;
  for (const auto& [rows, factor] : parts.parts) {
    const at::Tensor of_part = groups.narrow(1, begin, rows),
                     own = of_part.reshape({parts.groups * rows, columns}).contiguous();
    const double norm = norm_of(own.const_data_ptr<float>(), own.numel(), matrix_device);
    of_part.copy_(iterated(own, norm, how).mul(factor).view(of_part.sizes()));
    begin += rows;
  }
}

}  // namespace tessera::ops
