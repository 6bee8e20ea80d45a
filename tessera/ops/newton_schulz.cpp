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
  const Device device = matrix_device;
  const auto [a, b, c] = how.coefficients;
  const at::Tensor matrix =
      tensor_of({matrix_RC, static_cast<std::size_t>(rows * columns), DType::F32, device})
          .view({rows, columns});
  const bool tall = rows > columns;
  // A wide matrix is copied too, because products may depend on the alignment of their operands.
  at::Tensor x = (tall ? matrix.t() : matrix).clone(at::MemoryFormat::Contiguous);
  x.div_(std::max(norm_of(matrix_RC, rows * columns, device), how.eps));
  for (int step = 0; step < how.steps; ++step) {
    const at::Tensor gram = at::mm(x, x.t());
    x = at::addmm(x, at::addmm(gram, gram, gram, b, c), x, a, 1.0);
  }
  matrix.copy_(tall ? x.t() : x);
}

}  // namespace tessera::ops
