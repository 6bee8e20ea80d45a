// SPDX-License-Identifier: Apache-2.0
// Optimizer rules and sums over flat ranges. Compile without contraction (-fmad=false).
#include "tessera/ops/cuda/kernels.h"
#include "tessera/ops/cuda/lanes.h"

namespace tessera::ops::cuda {

#if defined(__CUDACC__)
#define EACH __device__
#define FUSED
#else
#define EACH
#define FUSED __attribute__((always_inline))
#endif
#define ON_DEVICE __device__ __forceinline__
#define INLINE inline

#include "tessera/ops/rules.inc"

// Sixteen threads, half a warp, add a chunk: thread i the elements i, i + 16, ... in their order,
// as the CPU's kernel does; then the sums of the upper half are added to the lower ones.
constexpr int kSums = 16;

/// The threads' sums in the order of the CPU's kernel; the result is that of the first of sixteen.
__device__ __forceinline__ double sum_of_sixteen(double sum) {
  for (int half = kSums / 2; half > 0; half /= 2)
    sum += __shfl_down_sync(0xffffffffU, sum, half, kSums);
  return sum;
}

__global__ void __launch_bounds__(kThreads)
    square_sums_kernel(const float* x, i64 numel, i64 chunk, i64 chunks, double* sums) {
  const i64 number = (i64{blockIdx.x} * kThreads + threadIdx.x) / kSums;
  const int place = static_cast<int>(threadIdx.x % kSums);
  double sum = 0.0;
  if (number < chunks) {
    const i64 first = number * chunk, end = first + chunk < numel ? first + chunk : numel;
    for (i64 at = first + place; at < end; at += kSums) {
      const double value = x[at];
      sum += value * value;
    }
  }
  sum = sum_of_sixteen(sum);
  if (place == 0 && number < chunks) sums[number] = sum;
}

__global__ void __launch_bounds__(kThreads) lamb_prepare_kernel(RuleRange a,
                                                                float grad_scale,
                                                                float* exp_avg,
                                                                float* exp_avg_sq,
                                                                Lamb lamb,
                                                                double* weight_sums,
                                                                double* update_sums) {
  const i64 chunks = (a.numel + kRuleChunk - 1) / kRuleChunk;
  const i64 number = (i64{blockIdx.x} * kThreads + threadIdx.x) / kSums;
  const int place = static_cast<int>(threadIdx.x % kSums);
  double of_weights = 0.0, of_updates = 0.0;
  if (number < chunks) {
    const i64 first = number * kRuleChunk;
    const i64 end = first + kRuleChunk < a.numel ? first + kRuleChunk : a.numel;
    for (i64 at = first + place; at < end; at += kSums) {
      const float p = a.master[at];
      float m = exp_avg[at], v = exp_avg_sq[at];
      lamb.add_to(m, v, p, a.grad[at] * grad_scale);
      exp_avg[at] = m;
      exp_avg_sq[at] = v;
      const double weight = p, update = lamb.step(p, m, v);
      of_weights += weight * weight;
      of_updates += update * update;
    }
  }
  of_weights = sum_of_sixteen(of_weights);
  of_updates = sum_of_sixteen(of_updates);
  if (place != 0 || number >= chunks) return;
  weight_sums[number] = of_weights;
  update_sums[number] = of_updates;
}

__global__ void set_kernel(unsigned long long* to, unsigned long long value) {
  *to = value;
}

__global__ void __launch_bounds__(kThreads)
    first_nonfinite_kernel(const float* x, i64 numel, unsigned long long* first) {
  const i64 step = i64{gridDim.x} * kThreads;
  for (i64 at = i64{blockIdx.x} * kThreads + threadIdx.x; at < numel; at += step) {
    if ((bits_of(x[at]) & 0x7f800000U) != 0x7f800000U) continue;
    atomicMin(first, static_cast<unsigned long long>(at));
    return;
  }
}

__global__ void __launch_bounds__(kThreads)
    column_square_sums_kernel(const float* x, i64 rows, i64 columns, double* sums) {
  const i64 column = i64{blockIdx.x} * kThreads + threadIdx.x;
  if (column >= columns) return;
  double sum = 0.0;
  for (i64 row = 0; row < rows; ++row) {
    const double value = x[row * columns + column];
    sum += value * value;
  }
  sums[column] = sum;
}

void chunk_square_sums(const float* x, i64 numel, i64 chunk, double* sums) {
  const i64 chunks = (numel + chunk - 1) / chunk;
  if (chunks == 0) return;
  const auto blocks = static_cast<unsigned>((chunks * kSums + kThreads - 1) / kThreads);
  TESSERA_LAUNCH(blocks, kThreads, square_sums_kernel, x, numel, chunk, chunks, sums);
}

void lamb_prepare(const RuleRange& range,
                  float* exp_avg,
                  float* exp_avg_sq,
                  const LambStep& step,
                  double* weight_sums,
                  double* update_sums) {
  if (range.numel == 0) return;
  const i64 chunks = (range.numel + kRuleChunk - 1) / kRuleChunk;
  const auto blocks = static_cast<unsigned>((chunks * kSums + kThreads - 1) / kThreads);
  const Lamb lamb(step);
  const RuleRange copy = range;
  const float grad_scale = f32(range.grad_scale);
  TESSERA_LAUNCH(blocks,
                 kThreads,
                 lamb_prepare_kernel,
                 copy,
                 grad_scale,
                 exp_avg,
                 exp_avg_sq,
                 lamb,
                 weight_sums,
                 update_sums);
}

void first_nonfinite(const float* x, i64 numel, unsigned long long* first) {
  const auto none = static_cast<unsigned long long>(numel);
  TESSERA_LAUNCH(1, 1, set_kernel, first, none);
  if (numel > 0)
    TESSERA_LAUNCH(blocks_for(numel), kThreads, first_nonfinite_kernel, x, numel, first);
}

void scale_rows_columns(
    float* x, i64 rows, i64 columns, const float* of_rows, const float* of_columns) {
  each_element(0, rows * columns, [=] EACH(i64 at, Lane) FUSED {
    x[at] = x[at] * of_rows[at / columns] * of_columns[at % columns];
  });
}

void column_square_sums(const float* x, i64 rows, i64 columns, double* sums) {
  if (columns == 0) return;
  const auto blocks = static_cast<unsigned>((columns + kThreads - 1) / kThreads);
  TESSERA_LAUNCH(blocks, kThreads, column_square_sums_kernel, x, rows, columns, sums);
}

}  // namespace tessera::ops::cuda
