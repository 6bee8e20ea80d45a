// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/cross_entropy.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/ops/arguments.h"
#include "tessera/ops/backend.h"
#include "tessera/ops/linear.h"
#include "tessera/ops/op_log.h"
#include "tessera/tensor/upload.h"

namespace tessera::ops {
namespace {

OpWork work_of(const at::Tensor& logits_NV, const at::Tensor& dlogits_NV) {
  return {.bytes = static_cast<double>(logits_NV.nbytes()) +
                   (dlogits_NV.defined() ? static_cast<double>(dlogits_NV.nbytes()) : 0.0),
          .shape = shape(logits_NV),
          .shape_class = ShapeClass::Rows};
}

/// Returns the loss of these rows and writes their gradient to `dlogits_NV` if it is defined.
at::Tensor entropy_of(const at::Tensor& logits_NV,
                      const at::Tensor& labels_N,
                      double label_smoothing,
                      const at::Tensor& dlogits_NV) {
  const OpScope scope("cross entropy", [&] { return work_of(logits_NV, dlogits_NV); });
  check_destination(logits_NV, logits_NV.numel(), "logits");
  return backend(logits_NV.device())
      .cross_entropy(logits_NV, labels_N, label_smoothing, dlogits_NV);
}

}  // namespace

std::int64_t count_labels(const at::Tensor& labels_N, std::int64_t vocab) {
  const at::Tensor labels = host_values(labels_N);
  const std::int64_t* label = labels.const_data_ptr<std::int64_t>();
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

CrossEntropyOut cross_entropy_(const at::Tensor& logits_NV,
                               const at::Tensor& labels_N,
                               double label_smoothing,
                               bool want_grad) {
  CrossEntropyOut out;
  if (want_grad) out.dlogits_NV = logits_NV;
  out.loss_sum = at::zeros({}, logits_NV.options().dtype(at::kDouble));
  if (logits_NV.is_meta()) {
    const OpScope scope("cross entropy", [&] { return work_of(logits_NV, out.dlogits_NV); });
    return out;
  }
  TESSERA_REQUIRE(logits_NV.dim() == 2 && labels_N.numel() == logits_NV.size(0) &&
                      labels_N.scalar_type() == at::kLong,
                  Shape,
                  "cross entropy of " + shape(logits_NV) + " with labels " + shape(labels_N),
                  "expected [rows, vocabulary] and int64 [rows]");
  const at::Tensor labels = labels_N.contiguous();
  out.count = count_labels(labels, logits_NV.size(1));
  out.loss_sum = entropy_of(logits_NV, labels, label_smoothing, out.dlogits_NV);
  return out;
}

void exp_rows_(const at::Tensor& logits_NV, const at::Tensor& largest_N, const at::Tensor& sums_N) {
  const std::int64_t N = logits_NV.size(0), V = logits_NV.size(1);
  TESSERA_ASSERT(V > 0 && largest_N.numel() == N && sums_N.numel() == N &&
                 largest_N.is_contiguous() && sums_N.is_contiguous());
  check_destination(logits_NV, N * V, "logits");
  const OpScope scope("exp rows", [&] {
    return OpWork{.bytes = 2.0 * static_cast<double>(logits_NV.nbytes()),
                  .shape = shape(logits_NV),
                  .shape_class = ShapeClass::Rows};
  });
  if (logits_NV.is_meta()) return;
  backend(logits_NV.device()).exp_rows(logits_NV, largest_N, sums_N);
}

std::int64_t logits_rows_at_once(at::ScalarType dtype,
                                 std::int64_t rows,
                                 std::int64_t vocab,
                                 bool want_grad,
                                 at::Device device) {
  // 64 MB: with more rows at a time the products are not faster.
  constexpr std::int64_t kElements = 1 << 24, kLeast = 256;
  // Gradients in a dtype other than bf16 overwrite the logits.
  if (want_grad && dtype != at::kBFloat16) return rows;
  // If weights are widened for a product, each additional product would widen them again.
  if (!products_to_fp32(dtype, device)) return rows;
  return std::min(rows, std::max(kLeast, kElements / vocab / kLeast * kLeast));
}

std::int64_t samples_of_logits(std::int64_t tokens, std::int64_t vocab) {
  // Products of fewer rows are slower: each reads the table, and its gradient adds to all of it.
  constexpr std::int64_t kRows = 1024, kElements = 1 << 25;
  if (tokens <= 0 || vocab <= 0) return 1;
  return std::max((kRows + tokens - 1) / tokens, kElements / vocab / tokens);
}

at::Tensor soft_cap_(const at::Tensor& logits, double cap, bool want_slope) {
  if (cap == 0.0) return {};
  logits.div_(cap).tanh_();
  const at::Tensor slope = want_slope ? 1.0 - logits.square() : at::Tensor();
  logits.mul_(cap);
  return slope;
}

CrossEntropyOut linear_cross_entropy(const at::Tensor& x_NC,
                                     const at::Tensor& weight_VC,
                                     const at::Tensor& labels_N,
                                     double label_smoothing,
                                     bool want_grad,
                                     const at::Tensor& bias_V,
                                     double softcap) {
  const bool narrow = x_NC.scalar_type() == at::kBFloat16;
  if (x_NC.is_meta() || (want_grad && !narrow) || x_NC.size(0) == 0) {
    const at::Tensor logits = linear(x_NC, weight_VC, bias_V, at::kFloat),
                     slope = soft_cap_(logits, softcap, want_grad);
    CrossEntropyOut out = cross_entropy_(logits, labels_N, label_smoothing, want_grad);
    if (slope.defined()) out.dlogits_NV.mul_(slope);
    return out;
  }
  TESSERA_REQUIRE(labels_N.numel() == x_NC.size(0) && labels_N.scalar_type() == at::kLong,
                  Shape,
                  "cross entropy of " + shape(x_NC) + " with labels " + shape(labels_N),
                  "expected [rows, channels] and int64 [rows]");
  const std::int64_t N = x_NC.size(0),
                     step = logits_rows_at_once(
                         x_NC.scalar_type(), N, weight_VC.size(0), want_grad, x_NC.device());
  const at::Tensor labels = labels_N.contiguous();
  CrossEntropyOut out;
  out.loss_sum = at::zeros({}, x_NC.options().dtype(at::kDouble));
  out.count = count_labels(labels, weight_VC.size(0));
  if (want_grad) out.dlogits_NV = at::empty({N, weight_VC.size(0)}, x_NC.options());
  for (std::int64_t row = 0; row < N; row += step) {
    const std::int64_t rows = std::min(step, N - row);
    const at::Tensor logits = linear(x_NC.narrow(0, row, rows), weight_VC, bias_V, at::kFloat),
                     slope = soft_cap_(logits, softcap, want_grad),
                     dlogits = want_grad ? out.dlogits_NV.narrow(0, row, rows) : at::Tensor();
    out.loss_sum.add_(entropy_of(logits, labels.narrow(0, row, rows), label_smoothing, dlogits));
    if (slope.defined()) dlogits.mul_(slope);
  }
  return out;
}

}  // namespace tessera::ops
