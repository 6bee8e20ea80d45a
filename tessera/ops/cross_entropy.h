// SPDX-License-Identifier: Apache-2.0
// Head and loss together: logits = x weight^T + bias, cross-entropy of each row. Legend: N tokens,
// C channels, V vocabulary.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace tessera::ops {

inline constexpr std::int64_t kIgnoreLabel = -100;

/// How many of contiguous int64 `labels` are not -100. Error{Data} for another one outside of [0,
/// vocab).
std::int64_t count_labels(const at::Tensor& labels_N, std::int64_t vocab);

struct CrossEntropyOut {
  /// fp64 scalar on the device of the logits, over rows whose label is not -100, in row order.
  at::Tensor loss_sum;
  std::int64_t count = 0;  ///< such rows
  at::Tensor dlogits_NV;   ///< d loss_sum / d logits, if asked for; else undefined
};
/// logits_NV fp32 (overwritten: becomes dlogits, fp32, when `want_grad`), labels_N int64. Label
/// smoothing a (source: Szegedy et al. 2016, as PyTorch's cross_entropy): (1 - a) * nll + a * mean
/// over V of -log p. Labels outside [0, V) other than -100 are Error{Data}. On meta: a
/// loss without a value, count 0.
CrossEntropyOut cross_entropy_(const at::Tensor& logits_NV,
                               const at::Tensor& labels_N,
                               double label_smoothing,
                               bool want_grad);

/// logits_NV, fp32 in rows, become e^(logit - the row's largest); fp64 [N] destinations get those
/// and the sums of what the rows became. On meta: nothing.
void exp_rows_(const at::Tensor& logits_NV, const at::Tensor& largest_N, const at::Tensor& sums_N);

/// Rows of fp32 logits that linear_cross_entropy() holds at a time, for x [rows, C] of `dtype`.
std::int64_t logits_rows_at_once(at::ScalarType dtype,
                                 std::int64_t rows,
                                 std::int64_t vocab,
                                 bool want_grad,
                                 at::Device device = at::kCPU);
/// Samples of `tokens` each whose gradients of logits should exist at a time.
std::int64_t samples_of_logits(std::int64_t tokens, std::int64_t vocab);
/// The logits become cap * tanh(logits / cap) (Gemma 2). Returns the derivative of that, of the
/// same sizes; undefined without a cap or unless `want_slope`.
at::Tensor soft_cap_(const at::Tensor& logits, double cap, bool want_slope);
/// The same of logits = x_NC weight_VC^T + bias_V, soft-capped, which are fp32 and, where that is
/// cheap, exist for some rows at a time. dlogits in bf16 where x is bf16, so that they need no
/// second pass; else fp32, as for no rows and on meta.
CrossEntropyOut linear_cross_entropy(const at::Tensor& x_NC,
                                     const at::Tensor& weight_VC,
                                     const at::Tensor& labels_N,
                                     double label_smoothing,
                                     bool want_grad,
                                     const at::Tensor& bias_V = {},
                                     double softcap = 0.0);

}  // namespace tessera::ops
