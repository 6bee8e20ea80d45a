// SPDX-License-Identifier: Apache-2.0
// Cross-entropy over a vocabulary that ranks share: no rank holds all logits of a token, and ranks
// exchange four numbers per token.
#include <algorithm>
#include <cstring>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/comm/world.h"
#include "tessera/nn/autograd.h"
#include "tessera/nn/tensor_parallel/one_d.h"
#include "tessera/nn/tensor_parallel/transfers.h"
#include "tessera/ops/linear.h"
#include "tessera/ops/reduce_parts.h"
#include "tessera/tensor/upload.h"

namespace tessera::nn::one_d {
namespace {

/// Number of rows processed at a time, so that the next pass finds them in the cache.
constexpr std::int64_t kRows = 16;

template <class Fn>
void by_rows(std::int64_t rows, Fn fn) {
  for (std::int64_t row = 0; row < rows; row += kRows)
    fn(row, std::min(kRows, rows - row));
}

/// This rank's share of the logits of some rows: columns [first, first + V / ranks).
class Share {
 public:
  Share(at::Tensor logits_NV, const at::Tensor& labels_N, std::int64_t first, double smoothing)
      : logits_(std::move(logits_NV)),
        on_host_(host_values(labels_N).contiguous()),
        labels_(on_host_.const_data_ptr<std::int64_t>()),
        first_(first),
        smoothing_(smoothing) {
    if (logits_.is_cpu()) return;
    const at::Tensor columns = (labels_N - first_).unsqueeze(1);
    own_N1_ = columns.ge(0).bitwise_and_(columns.lt(logits_.size(1)));
    columns_N1_ = columns.clamp(0, logits_.size(1) - 1);
    ignored_N1_ = labels_N.eq(ops::kIgnoreLabel).unsqueeze(1);
  }

  /// Returns [4, N] fp64 for this share: the largest logit, the sum of exp(logit - largest), the
  /// label's logit (0 if another rank has it) and, for label smoothing, the sum of all logits. The
  /// logits become exp(logit - largest).
  at::Tensor measure() {
    const at::Tensor out = at::zeros({4, rows()}, logits_.options().dtype(at::kDouble));
    if (logits_.is_cpu()) {
      double* const label_logit = out[2].data_ptr<double>();
      for (std::int64_t n = 0; n < rows(); ++n) {
        if (const float* logit = own_label(n)) label_logit[n] = *logit;
      }
    } else {
      out[2].copy_(logits_.gather(1, columns_N1_).mul_(own_N1_).squeeze(1));
    }
    if (smoothing_ > 0) out[3].copy_(logits_.sum(1, /*keepdim=*/false, at::kDouble));
    ops::exp_rows_(logits_, out[0], out[1]);
    largest_ = out[0].clone();
    return out;
  }

  /// The loss of all rows [] fp64 on the device of the logits, added in order, so that it has the
  /// same bits on every device; `all_R4N`: the result of measure() on every rank.
  at::Tensor loss(const at::Tensor& all_R4N, std::int64_t vocab) {
    const at::Tensor largest = all_R4N.select(1, 0), most = largest.amax(0);
    const at::Tensor total = (all_R4N.select(1, 1) * (largest - most).exp()).sum(0);
    // Label smoothing adds the mean over the whole vocabulary.
    at::Tensor losses = total.log() + most - (1.0 - smoothing_) * all_R4N.select(1, 2).sum(0) -
                        smoothing_ / static_cast<double>(vocab) * all_R4N.select(1, 3).sum(0);
    factor_ = ((largest_ - most).exp() / total).to(at::kFloat).unsqueeze(1);
    const at::Tensor sum = at::zeros({1}, losses.options());
    if (!losses.is_cpu()) {
      // By a kernel of the device, because the host would have to wait for the numbers.
      losses = losses.unsqueeze(1).masked_fill_(ignored_N1_, 0.0).contiguous();
      if (rows() > 0) ops::reduce_parts(losses, comm::Op::Sum, /*accumulate=*/true, sum);
      return sum[0];
    }
    const double* loss = losses.const_data_ptr<double>();
    double& all = *sum.data_ptr<double>();
    for (std::int64_t n = 0; n < rows(); ++n)
      all += labels_[n] == ops::kIgnoreLabel ? 0.0 : loss[n];
    return sum[0];
  }

  /// Overwrites the logits with d loss / d logits; call after loss().
  void gradient(std::int64_t vocab) {
    by_rows(rows(), [&](std::int64_t row, std::int64_t count) {
      const at::Tensor some = logits_.narrow(0, row, count);
      some.mul_(factor_.narrow(0, row, count));
      if (smoothing_ > 0) some.sub_(smoothing_ / static_cast<double>(vocab));
    });
    if (!logits_.is_cpu()) {
      logits_.masked_fill_(ignored_N1_, 0.0);
      const at::Tensor less = own_N1_.to(at::kFloat) * static_cast<float>(1.0 - smoothing_);
      logits_.scatter_add_(1, columns_N1_, less.neg_());
      return;
    }
    for (std::int64_t n = 0; n < rows(); ++n) {
      if (labels_[n] == ops::kIgnoreLabel) {
        std::memset(row(n), 0, static_cast<std::size_t>(logits_.size(1)) * sizeof(float));
      } else if (float* const logit = own_label(n)) {
        *logit -= static_cast<float>(1.0 - smoothing_);
      }
    }
  }

 private:
  [[nodiscard]] std::int64_t rows() const { return logits_.size(0); }
  float* row(std::int64_t n) { return logits_.data_ptr<float>() + n * logits_.size(1); }
  float* own_label(std::int64_t n) {
    const std::int64_t column = labels_[n] - first_;
    return column >= 0 && column < logits_.size(1) ? row(n) + column : nullptr;
  }

  at::Tensor logits_;
  at::Tensor on_host_;  ///< the labels
  const std::int64_t* labels_;
  at::Tensor columns_N1_, own_N1_, ignored_N1_;  ///< of labels on a device
  std::int64_t first_;
  double smoothing_;
  at::Tensor largest_, factor_;
};

}  // namespace

void post_shape_of_measures(std::int64_t rows, const comm::Group& group, StepContext& context) {
  const auto shape = [&](std::int64_t parts) {
    return comm::Span{nullptr, static_cast<std::size_t>(4 * rows * parts), DType::F64, {}};
  };
  detail::finish(context.tensor->world->transport().all_gather(
      group, shape(1), shape(group.size()), detail::site(context, "loss")));
}

at::Tensor cross_entropy_(const at::Tensor& logits_NV,
                          const at::Tensor& labels_N,
                          std::int64_t first,
                          std::int64_t vocab,
                          double label_smoothing,
                          bool want_grad,
                          const comm::Group& group,
                          StepContext& context) {
  Share share(logits_NV, labels_N, first, label_smoothing);
  const at::Tensor loss = share.loss(all_of(share.measure(), group, "loss", context), vocab);
  if (want_grad) share.gradient(vocab);
  return loss;
}

ops::CrossEntropyOut linear_cross_entropy(const at::Tensor& x_NC,
                                          const Param& weight_VC,
                                          const at::Tensor& bias_V,
                                          const at::Tensor& labels_N,
                                          double label_smoothing,
                                          bool want_grad,
                                          StepContext& context,
                                          double softcap) {
  const at::Tensor weight = detail::matrix(weight_VC.tensor());
  const ParamInfo& info = weight_VC.info();
  const std::int64_t N = x_NC.size(0), V = info.shape.front();
  const bool narrow = x_NC.scalar_type() == at::kBFloat16;
  // All ranks take the same steps, whatever the sizes of their shares.
  const std::int64_t step =
      ops::logits_rows_at_once(x_NC.scalar_type(), N, info.room_numel() / x_NC.size(1), want_grad);
  if (x_NC.is_meta()) {
    for (std::int64_t row = 0; row < N; row += step)
      post_shape_of_measures(std::min(step, N - row), *context.tensor->group, context);
    return ops::linear_cross_entropy(
        x_NC, weight, labels_N, label_smoothing, want_grad, bias_V, softcap);
  }
  const at::Tensor labels = labels_N.contiguous();
  ops::CrossEntropyOut out;
  out.loss_sum = at::zeros({}, x_NC.options().dtype(at::kDouble));
  out.count = ops::count_labels(labels, V);
  if (want_grad && narrow) out.dlogits_NV = at::empty({N, weight.size(0)}, x_NC.options());
  for (std::int64_t row = 0; row < N; row += step) {
    const std::int64_t rows = std::min(step, N - row);
    const at::Tensor logits = ops::linear(x_NC.narrow(0, row, rows), weight, bias_V, at::kFloat),
                     slope = ops::soft_cap_(logits, softcap, want_grad);
    out.loss_sum += cross_entropy_(logits,
                                   labels.narrow(0, row, rows),
                                   info.held().begin.front(),
                                   V,
                                   label_smoothing,
                                   want_grad,
                                   *context.tensor->group,
                                   context);
    if (!want_grad) continue;
    if (slope.defined()) logits.mul_(slope);
    if (narrow) {
      out.dlogits_NV.narrow(0, row, rows).copy_(logits);
    } else {
      out.dlogits_NV = logits;  // for all rows
    }
  }
  return out;
}

}  // namespace tessera::nn::one_d
