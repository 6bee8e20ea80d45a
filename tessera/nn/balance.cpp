// SPDX-License-Identifier: Apache-2.0
#include "tessera/nn/balance.h"

#include <algorithm>
#include <vector>

#include <ATen/ATen.h>

#include "tessera/comm/world.h"
#include "tessera/nn/denominators.h"
#include "tessera/nn/experts.h"
#include "tessera/nn/tensor_parallel/transfers.h"

// Legend: N tokens, E experts, K experts that a token uses, G groups of tokens that are balanced
// each on its own: the micro-batch, or its samples.
namespace tessera::nn {
namespace {

using namespace detail;

/// 1 for tokens that count, fp32 [N]; undefined: all count.
at::Tensor counting(std::int64_t N, const BalanceSpec& spec, const StepContext& context) {
  if (context.batch == nullptr || spec.padding) return {};
  const at::Tensor mask =
      token_mask(*context.batch, context.shares_tokens() ? context.context_parallel : nullptr);
  if (!mask.defined() || mask.numel() != N) return {};
  return mask.reshape({N}).ne(0).to(at::kFloat);
}

/// The choices of each expert by tokens that count, and the number of these tokens: fp64 [G, E +
/// 1], over all ranks that share the tokens.
at::Tensor counts_of(const Routed& routed,
                     const at::Tensor& mask_N,
                     std::int64_t groups,
                     StepContext& context) {
  const std::int64_t E = routed.scores_NE.size(1), N = routed.scores_NE.size(0);
  const at::Tensor& chosen_NK = routed.choices.chosen_NK;
  const std::int64_t K = chosen_NK.size(1);
  const auto doubles = at::TensorOptions().dtype(at::kDouble);
  if (chosen_NK.is_meta()) return at::empty({groups, E + 1}, doubles.device(at::kMeta));
  const at::Tensor out = at::zeros({groups, E + 1}, doubles);
  const at::Tensor mask = mask_N.defined() ? mask_N.to(at::kCPU).contiguous() : mask_N;
  const auto* chosen = chosen_NK.const_data_ptr<std::int32_t>();
  const float* counts = mask.defined() ? mask.const_data_ptr<float>() : nullptr;
  auto* to = out.data_ptr<double>();
  for (std::int64_t n = 0; n < N; ++n) {
    if (counts != nullptr && counts[n] == 0.0F) continue;
    double* const row = to + n / (N / groups) * (E + 1);
    for (std::int64_t k = 0; k < K; ++k)
      row[chosen[n * K + k]] += 1.0;
    row[E] += 1.0;
  }
  if (!context.shares_tokens()) return out;
  const ContextParallel& shared = *context.context_parallel;
  const std::vector<double> all =
      shared.world->all_reduce(*shared.group,
                               std::vector<double>(to, to + out.numel()),
                               comm::Op::Sum,
                               site(context, "choices of experts"));
  std::copy(all.begin(), all.end(), to);
  return out;
}

/// The sums of the scores of tokens that count: fp64 [G, E].
at::Tensor score_sums(const at::Tensor& scores_NE, const at::Tensor& mask_N, std::int64_t groups) {
  const at::Tensor scores =
      mask_N.defined() ? scores_NE * mask_N.to(scores_NE.device()).unsqueeze(1) : scores_NE;
  return scores.view({groups, -1, scores.size(1)}).sum(1, /*keepdim=*/false, at::kDouble);
}

/// The logarithm of the sum of exponentials of each row; libtorch has none on meta.
at::Tensor log_sum_exp(const at::Tensor& logits_NE) {
  return logits_NE.is_meta() ? logits_NE.sum(1) : at::logsumexp(logits_NE, {1});
}

/// sum over groups of E * sum_e f_e P_e.
at::Tensor balance(const at::Tensor& sums_GE,
                   const at::Tensor& counts_GE1,
                   bool per_choice,
                   std::int64_t top_k) {
  const std::int64_t E = sums_GE.size(1);
  const at::Tensor tokens = counts_GE1.narrow(1, E, 1).clamp_min(1.0);
  const double factor = static_cast<double>(E) / static_cast<double>(per_choice ? top_k : 1);
  const at::Tensor weights = counts_GE1.narrow(1, 0, E) * factor / (tokens * tokens);
  return (sums_GE * weights.to(sums_GE.device())).sum();
}

void add_balance(const Routed& routed,
                 const BalanceSpec& spec,
                 bool by_sample,
                 const at::Tensor& mask_N,
                 StepContext& context,
                 std::vector<Term>& terms) {
  const std::int64_t groups = by_sample ? context.batch->size() : 1;
  const at::Tensor counts = counts_of(routed, mask_N, groups, context);
  terms.push_back({.name = by_sample ? "sequence_balance" : "balance",
                   .sum = balance(score_sums(routed.scores_NE, mask_N, groups),
                                  counts,
                                  spec.per_choice,
                                  routed.choices.chosen_NK.size(1)),
                   .denominator = by_sample ? kPerSample : kPerMicroBatch,
                   .weight = by_sample ? spec.sequence : spec.micro_batch});
}

}  // namespace

void add_balance_terms(const Routed& routed,
                       const BalanceSpec& spec,
                       StepContext& context,
                       std::vector<Term>& terms) {
  const std::int64_t N = routed.scores_NE.size(0);
  const at::Tensor mask_N = counting(N, spec, context);
  if (spec.micro_batch != 0.0 && !spec.pooled_layers)
    add_balance(routed, spec, /*by_sample=*/false, mask_N, context, terms);
  if (spec.sequence != 0.0 && !spec.pooled_samples)
    add_balance(routed, spec, /*by_sample=*/true, mask_N, context, terms);
  if (spec.z == 0.0) return;
  at::Tensor z_N = log_sum_exp(routed.logits_NE).square();
  if (mask_N.defined()) z_N = z_N * mask_N.to(z_N.device());
  const at::Tensor sum = z_N.sum(at::kDouble);
  const std::int64_t sharers =
      context.shares_tokens() ? std::int64_t{context.context_parallel->group->size()} : 1;
  const std::int64_t parts =  // tokens of a sample in all layers and on all ranks that share it
      spec.z_layers == 0
          ? 1
          : std::max<std::int64_t>(N * sharers / context.batch->size(), 1) * spec.z_layers;
  terms.push_back({.name = "router_z",
                   .sum = parts == 1 ? sum : sum / static_cast<double>(parts),
                   .denominator = spec.z_layers == 0 ? kPerToken : kPerSample,
                   .weight = spec.z});
}

PooledBalance no_balance(std::int64_t groups, std::int64_t num_experts, at::Device device) {
  const auto options = at::TensorOptions().device(device);
  return {.scores_GE = at::zeros({groups, num_experts}, options.dtype(at::kFloat)),
          .counts_GE = at::zeros({groups, num_experts + 1}, options.dtype(at::kDouble))};
}

PooledBalance add_to_pool(const PooledBalance& sums,
                          const Routed& routed,
                          const BalanceSpec& spec,
                          StepContext& context) {
  const std::int64_t groups = sums.scores_GE.size(0);
  const at::Tensor mask_N = counting(routed.scores_NE.size(0), spec, context);
  const at::Tensor counts = counts_of(routed, mask_N, groups, context);
  const at::Tensor scores = score_sums(routed.scores_NE, mask_N, groups).to(at::kFloat);
  return {.scores_GE = sums.scores_GE + scores.to(sums.scores_GE.device()),
          .counts_GE = sums.counts_GE + counts.to(sums.counts_GE.device())};
}

void add_pooled_term(const PooledBalance& sums,
                     const BalanceSpec& spec,
                     std::int64_t top_k,
                     std::vector<Term>& terms) {
  const bool samples = spec.pooled_samples;
  terms.push_back(
      {.name = samples ? "sequence_balance" : "balance",
       .sum = balance(sums.scores_GE.to(at::kDouble), sums.counts_GE, spec.per_choice, top_k),
       .denominator = samples ? kPerSample : kPerMicroBatch,
       .weight = samples ? spec.sequence : spec.micro_batch});
}

}  // namespace tessera::nn
