// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/cross_entropy.h"

#include <algorithm>
#include <vector>

#include "tessera/ops/cpu/backend.h"
#include "tessera/ops/cpu/tensors.h"

namespace tessera::ops::cpu {
namespace {

std::int64_t logits_grain(std::int64_t vocab) {
  return std::max<std::int64_t>(1, 4096 / std::max<std::int64_t>(1, vocab));
}

}  // namespace

at::Tensor CpuBackend::cross_entropy(const at::Tensor& logits_NV,
                                     const at::Tensor& labels_N,
                                     double label_smoothing,
                                     const at::Tensor& dlogits_NV) const {
  const std::int64_t N = logits_NV.size(0), V = logits_NV.size(1);
  std::vector<double> losses(static_cast<std::size_t>(N));
  const bool grad = dlogits_NV.defined();
  const EntropyRows rows{.logits = logits_NV.data_ptr<float>(),
                         .labels = labels_N.data_ptr<std::int64_t>(),
                         .losses = losses.data(),
                         .vocab = V,
                         .ignored = kIgnoreLabel,
                         .smoothing = label_smoothing,
                         .dlogits = grad ? dlogits_NV.data_ptr() : nullptr};
  const auto kernel = kernels().cross_entropy[grad ? float_of(dlogits_NV) : kF32];
  parallel(
      N, logits_grain(V), [&](std::int64_t begin, std::int64_t end) { kernel(rows, begin, end); });
  double sum = 0.0;
  for (const double loss : losses)
    sum += loss;
  return at::scalar_tensor(sum, at::kDouble);
}

void CpuBackend::exp_rows(const at::Tensor& logits_NV,
                          const at::Tensor& largest_N,
                          const at::Tensor& sums_N) const {
  const std::int64_t N = logits_NV.size(0), V = logits_NV.size(1);
  auto* const x = logits_NV.data_ptr<float>();
  auto* const largest = largest_N.data_ptr<double>();
  auto* const sums = sums_N.data_ptr<double>();
  const auto kernel = kernels().exp_rows;
  parallel(N, logits_grain(V), [&](std::int64_t begin, std::int64_t end) {
    kernel(x, V, largest, sums, begin, end);
  });
}

}  // namespace tessera::ops::cpu
