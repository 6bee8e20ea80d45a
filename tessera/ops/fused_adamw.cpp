// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/fused_adamw.h"

#include "tessera/base/error.h"
#include "tessera/ops/backend.h"
#include "tessera/ops/op_log.h"
#include "tessera/tensor/dtype.h"

namespace tessera::ops {

void adamw(float* master,
           float* exp_avg,
           float* exp_avg_sq,
           const float* grad,
           std::uint16_t* working,
           DType working_dtype,
           std::int64_t numel,
           const AdamWScalars& scalars,
           Device device) {
  TESSERA_ASSERT(working == nullptr || working_dtype == DType::BF16 || working_dtype == DType::F16);
  // Three numbers are read and written, the gradient is read, and working weights are written.
  const OpScope scope("adamw", [&] {
    return OpWork{.bytes = static_cast<double>(numel) * (28.0 + (working == nullptr ? 0.0 : 2.0)),
                  .shape_class = ShapeClass::Update};
  });
  backend(device).adamw({.master = master,
                         .grad = grad,
                         .working = working,
                         .working_dtype = working_dtype,
                         .numel = numel,
                         .grad_scale = scalars.grad_scale,
                         .device = device},
                        exp_avg,
                        exp_avg_sq,
                        scalars);
}

void chunk_square_sums(
    const float* grad, std::int64_t numel, std::int64_t chunk, double* sums, Device device) {
  TESSERA_ASSERT(chunk > 0);
  const OpScope scope("square sums", [&] {
    return OpWork{.bytes = 4.0 * static_cast<double>(numel), .shape_class = ShapeClass::Update};
  });
  backend(device).chunk_square_sums(grad, numel, chunk, sums, to_torch(device));
}

std::int64_t first_nonfinite(const float* values, std::int64_t numel, Device device) {
  return backend(device).first_nonfinite(values, numel, to_torch(device));
}

}  // namespace tessera::ops
