// SPDX-License-Identifier: Apache-2.0
// AdamW on flat ranges, in one pass over memory. All pointers of a call refer to memory of
// `device`.
#pragma once

#include <cstdint>

#include "tessera/base/dtype.h"

namespace tessera::ops {

struct AdamWScalars {
  double lr = 0.0, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0.0;
  std::int64_t step = 1;    ///< number of this update, from 1
  double grad_scale = 1.0;  ///< clip coefficient; the gradient is multiplied by it first
  bool decoupled = true;    ///< AdamW; false: L2 (Adam with decay in the gradient)
  bool bias_correction = true;
};
/// p -= lr wd p; m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2; p -= lr/(1-b1^t) m /
/// (sqrt(v)/sqrt(1-b2^t) + eps). Every element is computed in the same way, whatever its place in a
/// vector. `working` (nullptr, or BF16 or F16 if it differs from the fp32 master) receives the
/// rounded result; values too large for F16 become infinite. Threads: at::get_num_threads().
/// Source: semantics of torch.optim.AdamW.
void adamw(float* master,
           float* exp_avg,
           float* exp_avg_sq,
           const float* grad,
           std::uint16_t* working,
           DType working_dtype,
           std::int64_t numel,
           const AdamWScalars& scalars,
           Device device = {});
/// sums[c] = sum of g^2 over chunk c of `chunk` elements, in fp64 in element order (sixteen
/// interleaved partial sums).
void chunk_square_sums(
    const float* grad, std::int64_t numel, std::int64_t chunk, double* sums, Device device = {});
/// Index of the first element that is NaN or infinite, or -1.
std::int64_t first_nonfinite(const float* values, std::int64_t numel, Device device = {});

}  // namespace tessera::ops
