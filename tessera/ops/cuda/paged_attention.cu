// SPDX-License-Identifier: Apache-2.0
// Attention of one query to pages of keys and values.
#include "tessera/ops/cuda/kernels.h"
#include "tessera/ops/cuda/lanes.h"

namespace tessera::ops::cuda {

namespace {

constexpr int kWarpOf = 32;

/// An element of a page: 8 bits have a scale for each token and head.
__device__ __forceinline__ float value_of(const std::int8_t* from, float scale) {
  return static_cast<float>(*from) * scale;
}
template <class T>
__device__ __forceinline__ float value_of(const T* from, float /*scale*/) {
  return load(from, Lane{});
}

constexpr int kPagedWarps = 4;
constexpr int kPagedThreads = kPagedWarps * kWarpOf;
constexpr int kMostOfLane = kMostPagedChannels / kWarpOf;

/// A block computes a head of a sequence: warp w takes the keys w, w + 4, ..., and keeps the sum of
/// exponentials relative to its largest score; the warps are added in their order at last.
template <class T, class P>
__global__ void __launch_bounds__(kPagedThreads) paged_attention_kernel(PagedRows a) {
  TESSERA_SHARED(float, sums, kPagedWarps * kMostPagedChannels);
  TESSERA_SHARED(float, largests, kPagedWarps);
  TESSERA_SHARED(float, totals, kPagedWarps);
  const i64 sample = blockIdx.x / a.heads, head = blockIdx.x % a.heads;
  const i64 group = head / (a.heads / a.groups);
  const int lane = static_cast<int>(threadIdx.x) % kWarpOf,
            warp = static_cast<int>(threadIdx.x) / kWarpOf;
  const T* const q = static_cast<const T*>(a.q) + (sample * a.heads + head) * a.channels;
  float query[kMostOfLane], sum[kMostOfLane];
  for (int i = 0; i < kMostOfLane; ++i) {
    const int c = lane + i * kWarpOf;
    query[i] = c < a.channels ? load(q + c, Lane{}) : 0.0F;
    sum[i] = 0.0F;
  }
  const i64 length = a.lengths[sample];
  // As ops::window_at().
  i64 window = a.window;
  if (a.chunk > 0) {
    const i64 of_chunk = (length - 1) % a.chunk + 1;
    window = window == 0 || of_chunk < window ? of_chunk : window;
  }
  const i64 first = window > 0 && length > window ? length - window : 0;
  float largest = -INFINITY, total = 0.0F;
  for (i64 key = first + warp; key < length; key += kPagedWarps) {
    const i64 page = a.table[sample * a.columns + key / a.page_tokens];
    const i64 row = (page * a.groups + group) * a.page_tokens + key % a.page_tokens;
    const P* const k = static_cast<const P*>(a.keys) + row * a.channels;
    const P* const v = static_cast<const P*>(a.values) + row * a.channels;
    const float k_scale = a.key_scales != nullptr ? a.key_scales[row] : 1.0F,
                v_scale = a.value_scales != nullptr ? a.value_scales[row] : 1.0F;
    float score = 0.0F;
    for (int i = 0; i < kMostOfLane; ++i) {
      const int c = lane + i * kWarpOf;
      if (c < a.channels) score += query[i] * value_of(k + c, k_scale);
    }
    for (int by = kWarpOf / 2; by > 0; by /= 2)
      score += __shfl_xor_sync(0xffffffffU, score, by);
    score *= a.scale;
    if (a.softcap > 0.0F) score = tanhf(score / a.softcap) * a.softcap;
    if (a.slopes != nullptr) score += a.slopes[head] * static_cast<float>(key - (length - 1));
    if (a.bias != nullptr) score += a.bias[head * a.bias_keys + a.bias_keys - length + key];
    const float top = larger(largest, score), keep = expf(largest - top),
                weight = expf(score - top);
    largest = top;
    total = total * keep + weight;
    for (int i = 0; i < kMostOfLane; ++i) {
      const int c = lane + i * kWarpOf;
      if (c < a.channels) sum[i] = sum[i] * keep + weight * value_of(v + c, v_scale);
    }
  }
  for (int i = 0; i < kMostOfLane; ++i)
    sums[warp * kMostPagedChannels + lane + i * kWarpOf] = sum[i];
  if (lane == 0) {
    largests[warp] = largest;
    totals[warp] = total;
  }
  __syncthreads();
  float top = largests[0];
  for (int w = 1; w < kPagedWarps; ++w)
    top = larger(top, largests[w]);
  T* const y = static_cast<T*>(a.y) + (sample * a.heads + head) * a.channels;
  for (int c = static_cast<int>(threadIdx.x); c < a.channels; c += kPagedThreads) {
    float all = 0.0F, value = 0.0F;
    for (int w = 0; w < kPagedWarps; ++w) {
      if (totals[w] == 0.0F) continue;  // it had no key
      const float share = expf(largests[w] - top);
      all += totals[w] * share;
      value += sums[w * kMostPagedChannels + c] * share;
    }
    store(y + c, value / all, Lane{});
  }
}

template <class T, class P>
void start_paged(const PagedRows& a, i64 samples) {
  const PagedRows copy = a;
  TESSERA_LAUNCH(static_cast<unsigned>(samples * a.heads),
                 kPagedThreads,
                 (paged_attention_kernel<T, P>),
                 copy);
}

/// fn(T*) for the type of the elements.
template <class Fn>
void for_heads(DType dtype, Fn fn) {
  if (dtype == DType::F32) return fn(static_cast<float*>(nullptr));
  if (dtype == DType::F16) return fn(static_cast<Half*>(nullptr));
  fn(static_cast<std::uint16_t*>(nullptr));
}

}  // namespace

void paged_attention(DType dtype, DType pages, const PagedRows& rows, std::int64_t samples) {
  if (samples == 0) return;
  for_heads(dtype, [&](auto* of_query) {
    using T = std::remove_pointer_t<decltype(of_query)>;
    if (pages == DType::I8) return start_paged<T, std::int8_t>(rows, samples);
    for_heads(pages, [&](auto* of_pages) {
      start_paged<T, std::remove_pointer_t<decltype(of_pages)>>(rows, samples);
    });
  });
}

}  // namespace tessera::ops::cuda
