// SPDX-License-Identifier: Apache-2.0
// Operations on rows: norms and the cross-entropy. A block handles a row; its sums are added in an
// order that depends on nothing but the number of threads of the block. Compile without contraction
// (-fmad=false), so that a norm adds a branch with the bits of pointwise.cu's dropout().
#include "tessera/ops/cuda/dropout.h"
#include "tessera/ops/cuda/kernels.h"
#include "tessera/ops/cuda/lanes.h"

namespace tessera::ops::cuda {

namespace {

constexpr int kWarpSize = 32;
constexpr int kMostWarps = kThreads / kWarpSize;

/// Threads for a row: whole warps, at most kThreads.
unsigned threads_for(i64 channels) {
  const i64 warps = (channels + kWarpSize - 1) / kWarpSize;
  return static_cast<unsigned>((warps < kMostWarps ? warps : kMostWarps) * kWarpSize);
}

struct Add {
  template <class T>
  __device__ __forceinline__ T operator()(T a, T b) const {
    return a + b;
  }
};
struct Larger {
  __device__ __forceinline__ float operator()(float a, float b) const { return larger(a, b); }
};

/// The result is in every thread. `parts`: kMostWarps values in shared memory.
template <class T, class Op>
__device__ __forceinline__ T over_block(T value, Op op, T* parts) {
  for (int by = kWarpSize / 2; by > 0; by /= 2)
    value = op(value, __shfl_xor_sync(0xffffffffU, value, by));
  const int warps = static_cast<int>(blockDim.x) / kWarpSize;
  if (warps == 1) return value;
  __syncthreads();  // the values of an earlier call have been read
  if (threadIdx.x % kWarpSize == 0) parts[threadIdx.x / kWarpSize] = value;
  __syncthreads();
  value = parts[0];
  for (int warp = 1; warp < warps; ++warp)
    value = op(value, parts[warp]);
  return value;
}

template <class T>
__global__ void __launch_bounds__(kThreads) norm_kernel(NormRows a) {
  TESSERA_SHARED(float, parts, kMostWarps);
  const i64 start = i64{blockIdx.x} * a.channels;
  const T* x = static_cast<const T*>(a.x) + start;
  const int step = static_cast<int>(blockDim.x);
  if (a.branch != nullptr) {
    const T* branch = static_cast<const T*>(a.branch) + start;
    T* sum = static_cast<T*>(a.sum) + start;
    for (int c = static_cast<int>(threadIdx.x); c < a.channels; c += step) {
      float add = load(branch + c, Lane{});
      if (a.drop.numel > 0) add = dropped(a.drop, start + c, add);
      store(sum + c, load(x + c, Lane{}) + add, Lane{});
    }
    x = sum;  // every thread reads what it has written
  }
  float mean = 0.0F;
  if (a.mean != nullptr) {
    for (int c = static_cast<int>(threadIdx.x); c < a.channels; c += step)
      mean += load(x + c, Lane{});
    mean = over_block(mean, Add(), parts) / static_cast<float>(a.channels);
  }
  float squares = 0.0F;
  for (int c = static_cast<int>(threadIdx.x); c < a.channels; c += step) {
    const float value = load(x + c, Lane{}) - mean;
    squares += value * value;
  }
  const double variance = over_block(squares, Add(), parts) / static_cast<float>(a.channels);
  const auto rstd = static_cast<float>(1.0 / sqrt(variance + a.eps));
  if (threadIdx.x == 0) {
    a.rstd[blockIdx.x] = rstd;
    if (a.mean != nullptr) a.mean[blockIdx.x] = mean;
  }
  T* const y = static_cast<T*>(a.y) + start;
  for (int c = static_cast<int>(threadIdx.x); c < a.channels; c += step) {
    const float scaled = (load(x + c, Lane{}) - mean) * rstd * a.weight[c];
    store(y + c, a.bias != nullptr ? scaled + a.bias[c] : scaled, Lane{});
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads) norm_grad_kernel(NormGradRows a) {
  TESSERA_SHARED(float, parts, kMostWarps);
  const i64 start = i64{blockIdx.x} * a.channels;
  const T *const dy = static_cast<const T*>(a.dy) + start, *const x =
                                                               static_cast<const T*>(a.x) + start;
  const float rstd = a.rstd[blockIdx.x], mean = a.mean != nullptr ? a.mean[blockIdx.x] : 0.0F;
  const int step = static_cast<int>(blockDim.x);
  float along = 0.0F, all = 0.0F;
  for (int c = static_cast<int>(threadIdx.x); c < a.channels; c += step) {
    const float g = load(dy + c, Lane{}) * a.weight[c];
    along += g * ((load(x + c, Lane{}) - mean) * rstd);
    all += g;
  }
  const auto count = static_cast<float>(a.channels);
  along = over_block(along, Add(), parts) / count;
  all = a.mean != nullptr ? over_block(all, Add(), parts) / count : 0.0F;
  const T* const plus = a.plus != nullptr ? static_cast<const T*>(a.plus) + start : nullptr;
  T* const dx = static_cast<T*>(a.dx) + start;
  T* const dbranch = a.dbranch != nullptr ? static_cast<T*>(a.dbranch) + start : nullptr;
  for (int c = static_cast<int>(threadIdx.x); c < a.channels; c += step) {
    const float g = load(dy + c, Lane{}) * a.weight[c];
    const float d = (g - (load(x + c, Lane{}) - mean) * rstd * along - all) * rstd;
    store(dx + c, plus != nullptr ? d + load(plus + c, Lane{}) : d, Lane{});
    // The gradient of the branch is that of the stream as it was rounded.
    if (dbranch != nullptr)
      store(dbranch + c, dropped(a.drop, start + c, load(dx + c, Lane{})), Lane{});
  }
}

/// Sums of columns over the rows of part blockIdx.y, for dweight and dbias.
template <class T>
__global__ void __launch_bounds__(kThreads) norm_columns_kernel(
    NormGradRows a, i64 rows, i64 rows_of_part, float* of_weight, float* of_bias) {
  const i64 c = i64{blockIdx.x} * kThreads + threadIdx.x;
  if (c >= a.channels) return;
  const i64 first = i64{blockIdx.y} * rows_of_part;
  const i64 end = first + rows_of_part < rows ? first + rows_of_part : rows;
  float weight = 0.0F, bias = 0.0F;
  for (i64 row = first; row < end; ++row) {
    const i64 at = row * a.channels + c;
    const float d = load(static_cast<const T*>(a.dy) + at, Lane{});
    const float mean = a.mean != nullptr ? a.mean[row] : 0.0F;
    weight += d * ((load(static_cast<const T*>(a.x) + at, Lane{}) - mean) * a.rstd[row]);
    bias += d;
  }
  const i64 to = i64{blockIdx.y} * a.channels + c;
  if (of_weight != nullptr) of_weight[to] = weight;
  if (of_bias != nullptr) of_bias[to] = bias;
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    column_sums_kernel(const T* x, i64 rows, i64 columns, i64 rows_of_part, float* parts) {
  const i64 c = i64{blockIdx.x} * kThreads + threadIdx.x;
  if (c >= columns) return;
  const i64 first = i64{blockIdx.y} * rows_of_part;
  const i64 end = first + rows_of_part < rows ? first + rows_of_part : rows;
  float sum = 0.0F;
  for (i64 row = first; row < end; ++row)
    sum += load(x + row * columns + c, Lane{});
  parts[i64{blockIdx.y} * columns + c] = sum;
}

__global__ void __launch_bounds__(kThreads)
    add_parts_kernel(const float* parts, int count, i64 channels, bool accumulate, float* out) {
  const i64 c = i64{blockIdx.x} * kThreads + threadIdx.x;
  if (c >= channels) return;
  double sum = accumulate ? static_cast<double>(out[c]) : 0.0;
  for (int part = 0; part < count; ++part)
    sum += static_cast<double>(parts[part * channels + c]);
  out[c] = static_cast<float>(sum);
}

template <class T>
__global__ void __launch_bounds__(kThreads) cross_entropy_kernel(CrossEntropyRows a) {
  TESSERA_SHARED(float, parts, kMostWarps);
  TESSERA_SHARED(double, sums, kMostWarps);
  const i64 row = blockIdx.x;
  const float* const logits = a.logits + row * a.vocab;
  T* const gradient = static_cast<T*>(a.gradient) + row * a.vocab;
  const i64 label = a.labels[row];
  const int step = static_cast<int>(blockDim.x);
  if (label < 0) {  // ignored
    if (threadIdx.x == 0) a.losses[row] = 0.0;
    if (a.gradient != nullptr) {
      for (i64 v = threadIdx.x; v < a.vocab; v += step)
        store(gradient + v, 0.0F, Lane{});
    }
    return;
  }
  // The sum of exponentials is kept for the largest logit so far.
  float largest = -INFINITY;
  double sum = 0.0, all = 0.0;
  for (i64 v = threadIdx.x; v < a.vocab; v += step) {
    const float logit = logits[v];
    if (logit > largest) {
      sum *= static_cast<double>(expf(largest - logit));
      largest = logit;
    }
    sum += static_cast<double>(expf(logit - largest));
    all += static_cast<double>(logit);
  }
  const float of_row = over_block(largest, Larger(), parts);
  if (largest < of_row) sum *= static_cast<double>(expf(largest - of_row));
  sum = over_block(sum, Add(), sums);
  if (a.smoothing > 0.0) all = over_block(all, Add(), sums);
  const double log_sum = static_cast<double>(of_row) + log(sum);
  if (threadIdx.x == 0) {
    double loss = (1.0 - a.smoothing) * (log_sum - static_cast<double>(logits[label]));
    if (a.smoothing > 0.0) loss += a.smoothing * (log_sum - all / static_cast<double>(a.vocab));
    a.losses[row] = loss;
  }
  if (a.gradient == nullptr) return;
  __syncthreads();  // the label's logit has been read; the gradient may take its place
  const auto inverse = static_cast<float>(1.0 / sum);
  const auto even = static_cast<float>(a.smoothing / static_cast<double>(a.vocab));
  const auto at_label = static_cast<float>(a.smoothing - 1.0);
  for (i64 v = threadIdx.x; v < a.vocab; v += step) {
    const float share = expf(logits[v] - of_row) * inverse - even;
    store(gradient + v, v == label ? share + at_label : share, Lane{});
  }
}

/// fn(T*) for the type of the elements.
template <class Fn>
void with_type(DType dtype, Fn fn) {
  if (dtype == DType::F32) return fn(static_cast<float*>(nullptr));
  if (dtype == DType::F16) return fn(static_cast<Half*>(nullptr));
  fn(static_cast<std::uint16_t*>(nullptr));
}

template <class T>
void start_norm(const NormRows& a, i64 rows) {
  TESSERA_LAUNCH(static_cast<unsigned>(rows), threads_for(a.channels), (norm_kernel<T>), a);
}
template <class T>
void start_norm_grad(const NormGradRows& a, i64 rows) {
  TESSERA_LAUNCH(static_cast<unsigned>(rows), threads_for(a.channels), (norm_grad_kernel<T>), a);
}
template <class T>
void start_norm_columns(const NormGradRows& a, i64 rows, float* of_weight, float* of_bias) {
  const i64 parts = norm_parts(rows), each = (rows + parts - 1) / parts;
  const dim3 grid(static_cast<unsigned>((a.channels + kThreads - 1) / kThreads),
                  static_cast<unsigned>(parts));
  TESSERA_LAUNCH(grid, kThreads, (norm_columns_kernel<T>), a, rows, each, of_weight, of_bias);
}
template <class T>
void start_column_sums(const T* x, i64 rows, i64 columns, float* sums) {
  const i64 parts = norm_parts(rows), each = (rows + parts - 1) / parts;
  const dim3 grid(static_cast<unsigned>((columns + kThreads - 1) / kThreads),
                  static_cast<unsigned>(parts));
  TESSERA_LAUNCH(grid, kThreads, (column_sums_kernel<T>), x, rows, columns, each, sums);
}
template <class T>
void start_cross_entropy(const CrossEntropyRows& a, i64 rows) {
  TESSERA_LAUNCH(static_cast<unsigned>(rows), threads_for(a.vocab), (cross_entropy_kernel<T>), a);
}

}  // namespace

std::int64_t norm_parts(std::int64_t rows) {
  constexpr i64 kRows = 32, kMostParts = 64;
  const i64 parts = (rows + kRows - 1) / kRows;
  return parts < kMostParts ? parts : kMostParts;
}

void norm(DType dtype, const NormRows& rows, std::int64_t count) {
  if (count == 0) return;
  with_type(dtype,
            [&](auto* type) { start_norm<std::remove_pointer_t<decltype(type)>>(rows, count); });
}

void norm_grad(DType dtype, const NormGradRows& rows, std::int64_t count) {
  if (count == 0) return;
  with_type(dtype, [&](auto* type) {
    start_norm_grad<std::remove_pointer_t<decltype(type)>>(rows, count);
  });
}

void norm_columns(
    DType dtype, const NormGradRows& rows, std::int64_t count, float* of_weight, float* of_bias) {
  if (count == 0) return;
  with_type(dtype, [&](auto* type) {
    start_norm_columns<std::remove_pointer_t<decltype(type)>>(rows, count, of_weight, of_bias);
  });
}

void column_sums(
    DType dtype, const void* x, std::int64_t rows, std::int64_t columns, float* parts) {
  if (rows == 0 || columns == 0) return;
  with_type(dtype, [&](auto* type) {
    start_column_sums(static_cast<const std::remove_pointer_t<decltype(type)>*>(x), rows, columns, parts);
  });
}

void add_parts(
    const float* parts, std::int64_t count, std::int64_t channels, bool accumulate, float* out) {
  const auto blocks = static_cast<unsigned>((channels + kThreads - 1) / kThreads);
  const int number = static_cast<int>(count);
  TESSERA_LAUNCH(blocks, kThreads, add_parts_kernel, parts, number, channels, accumulate, out);
}

void cross_entropy(DType gradient_dtype, const CrossEntropyRows& rows, std::int64_t count) {
  if (count == 0) return;
  with_type(gradient_dtype, [&](auto* type) {
    start_cross_entropy<std::remove_pointer_t<decltype(type)>>(rows, count);
  });
}

}  // namespace tessera::ops::cuda
