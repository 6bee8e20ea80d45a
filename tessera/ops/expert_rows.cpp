// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/expert_rows.h"

#include <numeric>

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>

#include "tessera/ops/arguments.h"
#include "tessera/ops/op_log.h"

namespace tessera::ops {
namespace {

constexpr std::int64_t kGrain = 16;

OpScope scope_of(const char* name, const at::Tensor& rows_RC) {
  return OpScope(name, [&] {
    return OpWork{.bytes = 2.0 * static_cast<double>(rows_RC.nbytes()), .shape = shape(rows_RC)};
  });
}

/// The K rows of each token, and 0 for dropped ones: [N, K, C]. For devices without kernels here.
at::Tensor rows_by_choice(const at::Tensor& y_RC, const ExpertRows& rows) {
  const at::Tensor& row_of = rows.row_of_NK;
  const at::Tensor kept = row_of.ge(0);
  const at::Tensor found = y_RC.index_select(0, row_of.clamp_min(0).view({-1}))
                               .view({row_of.size(0), row_of.size(1), -1});
  return at::where(kept.unsqueeze(-1), found, at::zeros({}, found.options()));
}

template <class T>
void add_rows(const T* y,
              const std::int64_t* row_of,
              const float* weights,
              std::int64_t K,
              std::int64_t C,
              float* sum,
              T* out) {
  std::fill_n(sum, C, 0.0F);
  for (std::int64_t k = 0; k < K; ++k) {
    if (row_of[k] < 0) continue;
    const T* const row = y + row_of[k] * C;
    const float weight = weights == nullptr ? 1.0F : weights[k];
    for (std::int64_t c = 0; c < C; ++c)
      sum[c] += weight * static_cast<float>(row[c]);
  }
  for (std::int64_t c = 0; c < C; ++c)
    out[c] = static_cast<T>(sum[c]);
}

template <class T>
void copy_row(const T* x, float weight, std::int64_t C, T* out) {
  for (std::int64_t c = 0; c < C; ++c)
    out[c] = static_cast<T>(weight * static_cast<float>(x[c]));
}

/// The sum of products, in 16 partial sums that are added in order.
template <class T>
float dot(const T* a, const T* b, std::int64_t C) {
  constexpr std::int64_t kLanes = 16;
  float sums[kLanes] = {};
  std::int64_t c = 0;
  for (; c + kLanes <= C; c += kLanes) {
    for (std::int64_t i = 0; i < kLanes; ++i)
      sums[i] += static_cast<float>(a[c + i]) * static_cast<float>(b[c + i]);
  }
  for (std::int64_t i = 0; c + i < C; ++i)
    sums[i] += static_cast<float>(a[c + i]) * static_cast<float>(b[c + i]);
  return std::accumulate(sums, sums + kLanes, 0.0F);
}

}  // namespace

ExpertRows ExpertRows::on(c10::Device device) const {
  return {counts, token_of_R.to(device), choice_of_R.to(device), row_of_NK.to(device)};
}

ExpertRows sort_by_expert(const at::Tensor& experts_NK, std::int64_t num_experts) {
  ExpertRows out;
  out.counts.assign(static_cast<std::size_t>(num_experts), 0);
  const std::int64_t all = experts_NK.numel(), K = experts_NK.size(1);
  const auto* experts = experts_NK.const_data_ptr<std::int32_t>();
  for (std::int64_t i = 0; i < all; ++i) {
    if (experts[i] >= 0) ++out.counts[static_cast<std::size_t>(experts[i])];
  }
  std::vector<std::int64_t> next(out.counts.size(), 0);
  std::exclusive_scan(out.counts.begin(), out.counts.end(), next.begin(), std::int64_t{0});
  const std::int64_t rows = std::accumulate(out.counts.begin(), out.counts.end(), std::int64_t{0});
  out.token_of_R = at::empty({rows}, at::kLong);
  out.choice_of_R = at::empty({rows}, at::kLong);
  out.row_of_NK = at::empty(experts_NK.sizes(), at::kLong);
  auto *token_of = out.token_of_R.data_ptr<std::int64_t>(),
       *choice_of = out.choice_of_R.data_ptr<std::int64_t>(),
       *row_of = out.row_of_NK.data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < all; ++i) {
    row_of[i] = experts[i] < 0 ? -1 : next[static_cast<std::size_t>(experts[i])]++;
    if (row_of[i] < 0) continue;
    token_of[row_of[i]] = i / K;
    choice_of[row_of[i]] = i;
  }
  return out;
}

at::Tensor rows_of_tokens(const at::Tensor& x_NC,
                          const ExpertRows& rows,
                          const at::Tensor& weights_NK) {
  const std::int64_t R = rows.token_of_R.size(0), C = x_NC.size(1);
  const at::Tensor out = at::empty({R, C}, x_NC.options());
  const OpScope scope = scope_of("rows of tokens", out);
  if (x_NC.is_meta() || R == 0) return out;
  if (!x_NC.is_cpu()) {
    const at::Tensor found = x_NC.index_select(0, rows.token_of_R);
    if (!weights_NK.defined()) return found;
    const at::Tensor w = weights_NK.to(x_NC.device()).view({-1}).index_select(0, rows.choice_of_R);
    return (found.to(at::kFloat) * w.unsqueeze(1)).to(x_NC.scalar_type());
  }
  const auto *token_of = rows.token_of_R.const_data_ptr<std::int64_t>(),
             *choice_of = rows.choice_of_R.const_data_ptr<std::int64_t>();
  const at::Tensor x = x_NC.contiguous();
  const float* const w = weights_NK.defined() ? weights_NK.const_data_ptr<float>() : nullptr;
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, x.scalar_type(), "rows_of_tokens", [&] {
    const auto* const from = x.const_data_ptr<scalar_t>();
    auto* const to = out.data_ptr<scalar_t>();
    at::parallel_for(0, R, kGrain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) {
        if (w == nullptr) {
          std::copy_n(from + token_of[r] * C, C, to + r * C);
        } else {
          copy_row(from + token_of[r] * C, w[choice_of[r]], C, to + r * C);
        }
      }
    });
  });
  return out;
}

at::Tensor sum_of_rows(const at::Tensor& y_RC,
                       const ExpertRows& rows,
                       const at::Tensor& weights_NK) {
  const std::int64_t N = rows.row_of_NK.size(0), K = rows.row_of_NK.size(1), C = y_RC.size(1);
  const OpScope scope = scope_of("sum of rows", y_RC);
  const at::Tensor out = at::empty({N, C}, y_RC.options());
  if (y_RC.is_meta() || N == 0) return out;
  if (y_RC.size(0) == 0) return out.zero_();
  if (!y_RC.is_cpu()) {
    at::Tensor by_choice = rows_by_choice(y_RC, rows).to(at::kFloat);
    if (weights_NK.defined()) by_choice = by_choice * weights_NK.to(y_RC.device()).unsqueeze(-1);
    at::Tensor sum = by_choice.select(1, 0);
    for (std::int64_t k = 1; k < K; ++k)
      sum = sum + by_choice.select(1, k);
    return sum.to(y_RC.scalar_type());
  }
  const auto* row_of = rows.row_of_NK.const_data_ptr<std::int64_t>();
  const float* const w = weights_NK.defined() ? weights_NK.const_data_ptr<float>() : nullptr;
  const at::Tensor y = y_RC.contiguous();
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, y.scalar_type(), "sum_of_rows", [&] {
    const auto* const from = y.const_data_ptr<scalar_t>();
    auto* const to = out.data_ptr<scalar_t>();
    at::parallel_for(0, N, kGrain, [&](std::int64_t begin, std::int64_t end) {
      std::vector<float> sum(static_cast<std::size_t>(C));
      for (std::int64_t n = begin; n < end; ++n) {
        const float* const of_token = w == nullptr ? nullptr : w + n * K;
        add_rows(from, row_of + n * K, of_token, K, C, sum.data(), to + n * C);
      }
    });
  });
  return out;
}

at::Tensor products_of_rows(const at::Tensor& x_NC,
                            const at::Tensor& y_RC,
                            const ExpertRows& rows) {
  const std::int64_t N = rows.row_of_NK.size(0), K = rows.row_of_NK.size(1), C = x_NC.size(1);
  const OpScope scope = scope_of("products of rows", y_RC);
  const at::Tensor out = at::zeros({N, K}, x_NC.options().dtype(at::kFloat));
  if (x_NC.is_meta() || N == 0 || y_RC.size(0) == 0) return out;
  if (!x_NC.is_cpu()) {
    return (rows_by_choice(y_RC, rows).to(at::kFloat) * x_NC.to(at::kFloat).unsqueeze(1)).sum(-1);
  }
  const auto* row_of = rows.row_of_NK.const_data_ptr<std::int64_t>();
  const at::Tensor x = x_NC.contiguous(), y = y_RC.contiguous();
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kBFloat16, at::kHalf, y.scalar_type(), "products_of_rows", [&] {
        const auto *a = x.const_data_ptr<scalar_t>(), *b = y.const_data_ptr<scalar_t>();
        auto* const to = out.data_ptr<float>();
        at::parallel_for(0, N, kGrain, [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t i = begin * K; i < end * K; ++i) {
            if (row_of[i] >= 0) to[i] = dot(a + i / K * C, b + row_of[i] * C, C);
          }
        });
      });
  return out;
}

}  // namespace tessera::ops
