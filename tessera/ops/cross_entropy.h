// SPDX-License-Identifier: Apache-2.0
// Head and loss combined: logits = x weight^T + bias, and the cross-entropy of each row. Legend: N
// tokens, C channels, V vocabulary.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace tessera::ops {

inline constexpr std::int64_t kIgnoreLabel = -100;

/// Number of contiguous int64 `labels` that are not -100. Throws Error{Data} for any other label
/// outside [0, vocab).
std::int64_t count_labels(const at::Tensor& labels_N, std::int64_t vocab);

struct CrossEntropyOut {
  /// fp64 scalar on the device of the logits, over rows whose label is not -100, in row order.
  at::Tensor loss_sum;
  std::int64_t count = 0;  ///< number of such rows
  at::Tensor dlogits_NV;   ///< d loss_sum / d logits if requested; else undefined
};
/// logits_NV: fp32 (overwritten; becomes dlogits, fp32, if `want_grad`); labels_N: int64. With
/// label smoothing a: (1 - a) * nll + a * mean over V of -log p (source: Szegedy et al. 2016, as in
/// PyTorch's cross_entropy). Throws Error{Data} for labels outside [0, V) other than -100. On meta:
/// a loss without a value, count 0.
CrossEntropyOut cross_entropy_(const at::Tensor& logits_NV,
                               const at::Tensor& labels_N,
                               double label_smoothing,
                               bool want_grad);

/// Replaces logits_NV (fp32 rows) by e^(logit - the row's largest); the fp64 [N] destinations
/// receive the largest logits and the sums of the new rows. Does nothing on meta.
void exp_rows_(const at::Tensor& logits_NV, const at::Tensor& largest_N, const at::Tensor& sums_N);

/// Number of rows of fp32 logits that linear_cross_entropy() holds at a time, for x [rows, C] of
/// `dtype`.
std::int64_t logits_rows_at_once(at::ScalarType dtype,
                                 std::int64_t rows,
                                 std::int64_t vocab,
                                 bool want_grad,
                                 at::Device device = at::kCPU);
/// Number of samples of `tokens` tokens each whose gradients of logits should exist at a time.
std::int64_t samples_of_logits(std::int64_t tokens, std::int64_t vocab);
/// Replaces the logits by cap * tanh(logits / cap) (Gemma 2). Returns its derivative in the same
/// shape; undefined without a cap or unless `want_slope`.
at::Tensor soft_cap_(const at::Tensor& logits, double cap, bool want_slope);
/// Cross-entropy of logits = x_NC weight_VC^T + bias_V, soft-capped. The logits are fp32 and, if
/// that is cheap, exist for some rows at a time. dlogits are bf16 if x is bf16, so that they need
/// no second pass; else, for no rows, and on meta they are fp32.
CrossEntropyOut linear_cross_entropy(const at::Tensor& x_NC,
                                     const at::Tensor& weight_VC,
                                     const at::Tensor& labels_N,
                                     double label_smoothing,
                                     bool want_grad,
                                     const at::Tensor& bias_V = {},
                                     double softcap = 0.0);

}  // namespace tessera::ops
