// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/cross_entropy.h"

#include <vector>

#include <ATen/ATen.h>

#include "tessera/ops/cpu/tensors.h"

namespace tessera::ops {
namespace {

std::int64_t count_labels(const at::Tensor& labels, std::int64_t vocab) {
  const std::int64_t* label = labels.data_ptr<std::int64_t>();
  std::int64_t count = 0;
  for (std::int64_t row = 0; row < labels.numel(); ++row) {
    if (label[row] == kIgnoreLabel) continue;
    TESSERA_REQUIRE(label[row] >= 0 && label[row] < vocab,
                    Data,
                    "label " + std::to_string(label[row]) + " of row " + std::to_string(row) +
                        " is outside the vocabulary of " + std::to_string(vocab),
                    "use the tokenizer that the model's vocabulary belongs to");
    ++count;
  }
  return count;
}

}  // namespace

CrossEntropyOut cross_entropy_(const at::Tensor& logits_NV,
                               const at::Tensor& labels_N,
                               double label_smoothing,
                               bool want_grad) {
  CrossEntropyOut out;
  if (want_grad) out.dlogits_NV = logits_NV;
  if (logits_NV.is_meta()) return out;
  TESSERA_REQUIRE(
      logits_NV.dim() == 2 && labels_N.numel() == logits_NV.size(0) &&
          labels_N.scalar_type() == at::kLong,
      Shape,
      "cross entropy of " + cpu::shape(logits_NV) + " with labels " + cpu::shape(labels_N),
      "expected [rows, vocabulary] and int64 [rows]");
  const std::int64_t N = logits_NV.size(0), V = logits_NV.size(1);
  const at::Tensor labels = labels_N.contiguous();
  out.count = count_labels(labels, V);
  std::vector<double> losses(static_cast<std::size_t>(N));
  const cpu::EntropyRows rows{.logits = cpu::destination(logits_NV, N * V, "logits"),
                              .labels = labels.data_ptr<std::int64_t>(),
                              .losses = losses.data(),
                              .vocab = V,
                              .ignored = kIgnoreLabel,
                              .smoothing = label_smoothing,
                              .want_grad = want_grad};
  const auto kernel = cpu::kernels().cross_entropy;
  cpu::parallel(N,
                std::max<std::int64_t>(1, 4096 / std::max<std::int64_t>(1, V)),
                [&](std::int64_t begin, std::int64_t end) { kernel(rows, begin, end); });
  for (const double loss : losses)
    out.loss_sum += loss;
  return out;
}

}  // namespace tessera::ops
