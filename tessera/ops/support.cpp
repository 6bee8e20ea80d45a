// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/support.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "tessera/base/error.h"
#include "tessera/ops/arguments.h"

namespace tessera::ops {
namespace {

/// The number of most likely tokens, of those in `order` by their ids, that reach the share; sorts
/// them to the front.
std::int64_t nucleus_of(const float* logits, std::vector<std::int64_t>& order, double share) {
  const auto before = [&](std::int64_t a, std::int64_t b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  };
  const float best = logits[*std::min_element(order.begin(), order.end(), before)];
  const auto weight = [&](std::int64_t id) {
    return std::exp(static_cast<double>(logits[id]) - static_cast<double>(best));
  };
  double total = 0.0;
  for (const std::int64_t id : order)
    total += weight(id);
  double reached = 0.0;
  std::int64_t count = 0;
  // Few tokens have most of the probability, so that they are sorted piece by piece.
  for (std::int64_t sorted = 0; count < std::ssize(order);) {
    const std::int64_t more =
        std::min<std::int64_t>(std::max<std::int64_t>(256, sorted), std::ssize(order) - sorted);
    std::partial_sort(order.begin() + sorted, order.begin() + sorted + more, order.end(), before);
    for (sorted += more; count < sorted; ++count) {
      if (count > 0 && reached >= share * total) return count;
      reached += weight(order[static_cast<std::size_t>(count)]);
    }
  }
  return count;
}

void keep_row(float* logits, std::int64_t size, std::int64_t label, const Support& support) {
  const std::int64_t vocab = support.vocab > 0 ? std::min(support.vocab, size) : size;
  std::vector<std::int64_t> order(static_cast<std::size_t>(vocab));
  std::iota(order.begin(), order.end(), 0);
  if (support.top_k > 0 && support.top_k < vocab) {
    std::nth_element(order.begin(),
                     order.begin() + support.top_k - 1,
                     order.end(),
                     [&](std::int64_t a, std::int64_t b) {
                       return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
                     });
    order.resize(static_cast<std::size_t>(support.top_k));
  }
  if (support.top_p < 1.0)
    order.resize(static_cast<std::size_t>(nucleus_of(logits, order, support.top_p)));
  std::vector<float> kept;
  kept.reserve(order.size());
  for (const std::int64_t id : order)
    kept.push_back(logits[id]);
  const float of_label = label >= 0 ? logits[label] : 0.0F;
  std::fill_n(logits, size, -std::numeric_limits<float>::infinity());
  for (std::size_t i = 0; i < order.size(); ++i)
    logits[order[i]] = kept[i];
  if (label >= 0) logits[label] = of_label;
}

/// The same by operations of a device. The sums of a share of top_p are added in another order, so
/// that a token whose share is reached within rounding may be kept here and not there.
void keep_support_there(const at::Tensor& logits_NV,
                        const at::Tensor& labels_N,
                        const Support& support) {
  const std::int64_t V = logits_NV.size(1);
  const std::int64_t vocab = support.vocab > 0 ? std::min(support.vocab, V) : V;
  const std::int64_t most = support.top_k > 0 ? std::min(support.top_k, vocab) : vocab;
  // The lower id of equal logits comes first.
  auto [sorted, ids] = logits_NV.narrow(1, 0, vocab).sort(/*stable=*/true, 1, /*descending=*/true);
  sorted = sorted.narrow(1, 0, most);
  ids = ids.narrow(1, 0, most);
  at::Tensor kept = at::ones_like(sorted, at::kBool);
  if (support.top_p < 1.0) {
    const at::Tensor weights =
        (sorted.to(at::kDouble) - sorted.narrow(1, 0, 1).to(at::kDouble)).exp();
    const at::Tensor reached = weights.cumsum(1);
    kept = (reached - weights).lt(reached.narrow(1, most - 1, 1) * support.top_p);
    kept.select(1, 0).fill_(true);
  }
  at::Tensor whole = at::zeros_like(logits_NV, at::kBool).scatter_(1, ids, kept);
  if (labels_N.defined()) {
    const at::Tensor labels = labels_N.view({-1, 1});
    whole.bitwise_or_(at::zeros_like(whole).scatter_(1, labels.clamp_min(0), labels.ge(0)));
  }
  logits_NV.masked_fill_(whole.logical_not(), -std::numeric_limits<float>::infinity());
}

}  // namespace

void keep_support_(const at::Tensor& logits_NV,
                   const at::Tensor& labels_N,
                   const Support& support) {
  if (support.whole() || logits_NV.is_meta() || logits_NV.numel() == 0) return;
  const std::int64_t N = logits_NV.size(0), V = logits_NV.size(1);
  check_destination(logits_NV, N * V, "logits");
  TESSERA_ASSERT(!labels_N.defined() || (labels_N.numel() == N && labels_N.is_contiguous()));
  if (!logits_NV.is_cpu()) return keep_support_there(logits_NV, labels_N, support);
  auto* const logits = logits_NV.data_ptr<float>();
  const auto* const labels = labels_N.defined() ? labels_N.const_data_ptr<std::int64_t>() : nullptr;
  at::parallel_for(0, N, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row)
      keep_row(logits + row * V, V, labels == nullptr ? -1 : labels[row], support);
  });
}

}  // namespace tessera::ops
