// SPDX-License-Identifier: Apache-2.0
// The choice of the next token. One block reads the logits of a sequence, so that the host waits
// once for a token, not for each question about the logits.
#include "tessera/ops/cuda/kernels.h"
#include "tessera/ops/cuda/lanes.h"

namespace tessera::ops::cuda {

namespace {

/// The sum of the threads' counts, in every thread.
__device__ __forceinline__ i64 sum_of(i64 value, i64* parts) {
  __syncthreads();  // earlier parts have been read
  parts[threadIdx.x] = value;
  __syncthreads();
  i64 sum = 0;
  for (int i = 0; i < kThreads; ++i)
    sum += parts[i];
  return sum;
}

/// Finds the largest logit, the first one among equals, and the first that is not a number; then
/// writes the weight of every token relative to the largest.
__global__ void __launch_bounds__(kThreads)
    weights_kernel(const float* logits, i64 vocab, double temperature, double* weights, i64* found) {
  TESSERA_SHARED(float, largests, kThreads);
  TESSERA_SHARED(i64, places, kThreads);
  TESSERA_SHARED(i64, undefined, kThreads);
  const int thread = static_cast<int>(threadIdx.x);
  float largest = -INFINITY;
  i64 place = vocab, bad = vocab;
  for (i64 v = thread; v < vocab; v += kThreads) {
    const float logit = logits[v];
    if (logit != logit && bad == vocab) bad = v;
    if (logit > largest || place == vocab) {
      largest = logit;
      place = v;
    }
  }
  largests[thread] = largest;
  places[thread] = place;
  undefined[thread] = bad;
  __syncthreads();
  if (thread == 0) {
    for (int i = 1; i < kThreads; ++i) {
      if (places[i] < vocab && (largests[i] > largest || (largests[i] == largest && places[i] < place))) {
        largest = largests[i];
        place = places[i];
      }
      bad = undefined[i] < bad ? undefined[i] : bad;
    }
    places[0] = place;
    found[kBestToken] = place;
    found[kUndefinedLogit] = bad < vocab ? bad : -1;
  }
  __syncthreads();
  if (weights == nullptr) return;
  const i64 best = places[0];
  const double top = static_cast<double>(logits[best]);
  for (i64 v = thread; v < vocab; v += kThreads) {
    // The difference of infinite logits is undefined.
    weights[v] = v == best ? 1.0 : exp((static_cast<double>(logits[v]) - top) / temperature);
  }
}

/// Draws one of `count` tokens in proportion to their weights, which are in descending order if
/// top_p < 1. Thread i adds a contiguous part, so that the order of the sums is fixed.
__global__ void __launch_bounds__(kThreads) draw_kernel(
    const double* weights, const i64* ids, i64 count, double top_p, double uniform, i64* found) {
  TESSERA_SHARED(double, starts, kThreads + 1);
  TESSERA_SHARED(i64, parts, kThreads);
  const int thread = static_cast<int>(threadIdx.x);
  const i64 each = (count + kThreads - 1) / kThreads, first = thread * each;
  const i64 end = first + each < count ? first + each : count;
  double sum = 0.0;
  for (i64 i = first; i < end; ++i)
    sum += weights[i];
  starts[thread + 1] = sum;
  __syncthreads();
  if (thread == 0) {
    starts[0] = 0.0;
    for (int i = 0; i < kThreads; ++i)
      starts[i + 1] += starts[i];
  }
  __syncthreads();
  i64 kept = count;
  double limit = starts[kThreads];
  if (top_p < 1.0) {
    const double wanted = limit * top_p;
    i64 below = 0;
    double before = starts[thread];
    for (i64 i = first; i < end; ++i) {
      below += before < wanted ? 1 : 0;
      before += weights[i];
    }
    kept = sum_of(below, parts);
    kept = kept < 1 ? 1 : kept;
    const i64 last = (kept - 1) / each;  // the thread whose part has the last kept token
    limit = starts[last];
    for (i64 i = last * each; i < kept; ++i)
      limit += weights[i];
  }
  const double goal = limit * uniform;
  i64 passed = 0;
  double reached = starts[thread];
  for (i64 i = first; i < end && i < kept; ++i) {
    reached += weights[i];
    passed += reached <= goal ? 1 : 0;
  }
  i64 drawn = sum_of(passed, parts);
  drawn = drawn < kept ? drawn : kept - 1;
  if (thread == 0) found[kDrawnToken] = ids != nullptr ? ids[drawn] : drawn;
}

}  // namespace

void token_weights(const float* logits,
                   std::int64_t vocab,
                   double temperature,
                   double* weights,
                   std::int64_t* found) {
  TESSERA_LAUNCH(1, kThreads, weights_kernel, logits, vocab, temperature, weights, found);
}

void draw_token(const double* weights,
                const std::int64_t* ids,
                std::int64_t count,
                double top_p,
                double uniform,
                std::int64_t* found) {
  TESSERA_LAUNCH(1, kThreads, draw_kernel, weights, ids, count, top_p, uniform, found);
}

}  // namespace tessera::ops::cuda
