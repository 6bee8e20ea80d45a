// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/attention_block.h"

#include <cmath>
#include <limits>

#include <ATen/ATen.h>

#include "tessera/ops/cpu/tensors.h"

namespace tessera::ops {
namespace {

double scale_of(const AttentionBlock& block, const at::Tensor& q) {
  return block.scale != 0.0 ? block.scale : 1.0 / std::sqrt(static_cast<double>(q.size(-1)));
}

/// Else, with neither mask nor dropout, a block is attention of its own, and of the whole its
/// backward needs only what attention_backward() takes.
bool makes_probabilities(const AttentionBlock& block) {
  return block.mask_BS.defined() || block.dropout.active();
}
AttentionArgs args_of(const AttentionBlock& block) {
  AttentionArgs args;
  args.causal = block.causal;
  args.scale = block.scale;
  return args;
}

void check(const at::Tensor& q, const at::Tensor& k, const AttentionBlock& block) {
  TESSERA_REQUIRE(!block.causal || q.size(2) == k.size(2),
                  Shape,
                  "a causal block of q " + cpu::shape(q) + " and k " + cpu::shape(k),
                  "give it as many queries as keys");
}

/// Scaled and masked, fp32 [B, H, T, S].
at::Tensor scores_of(const at::Tensor& q, const at::Tensor& k, const AttentionBlock& block) {
  at::Tensor scores = at::matmul(cpu::by_shared_heads(cpu::plain_float(q), k.size(1)),
                                 cpu::plain_float(k).transpose(2, 3))
                          .view({q.size(0), q.size(1), q.size(2), k.size(2)});
  scores.mul_(scale_of(block, q));
  if (block.mask_BS.defined()) {
    scores.add_(((1.0 - block.mask_BS.to(at::kFloat)) * -10000.0).unsqueeze(1).unsqueeze(1));
  }
  if (block.causal) {
    const at::Tensor place = at::arange(k.size(2), at::kLong);
    scores.masked_fill_(place.unsqueeze(1).lt(place), -std::numeric_limits<float>::infinity());
  }
  return scores;
}

at::Tensor drop(const at::Tensor& x_BHTS, const AttentionBlock& block) {
  if (!block.dropout.active()) return x_BHTS;
  DropoutKey key = block.dropout;
  key.parts.clear();  // those of the tokens between layers
  return dropout(x_BHTS,
                 key,
                 {.first_matrix = block.first_head,
                  .rows = block.tokens,
                  .columns = block.tokens,
                  .row_runs = block.queries,
                  .column_runs = block.keys});
}

AttentionOut plain_block(const at::Tensor& q,
                         const at::Tensor& k,
                         const at::Tensor& v,
                         const AttentionBlock& block) {
  at::Tensor scores = scores_of(q, k, block);
  const at::Tensor log_sum = at::logsumexp(scores, at::IntArrayRef{3});
  const at::Tensor probabilities = scores.sub_(log_sum.unsqueeze(3)).exp_();
  const at::Tensor y =
      at::matmul(cpu::by_shared_heads(drop(probabilities, block), k.size(1)), cpu::plain_float(v))
          .view(q.sizes());
  return {y.to(q.scalar_type()), log_sum};
}

AttentionGrads plain_backward(const at::Tensor& dy,
                              const at::Tensor& q,
                              const at::Tensor& k,
                              const at::Tensor& v,
                              const AttentionOut& whole,
                              const AttentionBlock& block) {
  const at::Tensor g = cpu::plain_float(dy);
  const at::Tensor probabilities =
      scores_of(q, k, block).sub_(whole.saved.unsqueeze(3)).exp_();  // among all keys
  const std::int64_t shared = k.size(1);
  const at::Tensor by_shared = cpu::by_shared_heads(g, shared);
  const at::Tensor dv = at::matmul(
      cpu::by_shared_heads(drop(probabilities, block), shared).transpose(2, 3), by_shared);
  // The sum of probabilities x their gradients, over all keys.
  const at::Tensor mean = (g * cpu::plain_float(whole.y_BHTK)).sum(3, /*keepdim=*/true);
  at::Tensor dscores =
      drop(at::matmul(by_shared, cpu::plain_float(v).transpose(2, 3)).view(probabilities.sizes()),
           block);
  dscores.sub_(mean).mul_(probabilities).mul_(scale_of(block, q));
  const at::ScalarType dtype = q.scalar_type();
  dscores = cpu::by_shared_heads(dscores, shared);
  const at::Tensor queries = cpu::by_shared_heads(cpu::plain_float(q), shared);
  return {at::matmul(dscores, cpu::plain_float(k)).view(q.sizes()).to(dtype),
          at::matmul(dscores.transpose(2, 3), queries).to(dtype),
          dv.to(dtype)};
}

}  // namespace

AttentionOut attention_block(const at::Tensor& q_BHTK,
                             const at::Tensor& k_BGSK,
                             const at::Tensor& v_BGSK,
                             const AttentionBlock& block) {
  check(q_BHTK, k_BGSK, block);
  if (q_BHTK.is_meta()) {
    return {at::empty_like(q_BHTK),
            at::empty({q_BHTK.size(0), q_BHTK.size(1), q_BHTK.size(2)},
                      q_BHTK.options().dtype(at::kFloat))};
  }
  if (makes_probabilities(block)) return plain_block(q_BHTK, k_BGSK, v_BGSK, block);
  return attention(q_BHTK, k_BGSK, v_BGSK, args_of(block));
}

void merge_attention(const AttentionOut& block, std::int64_t first_query, const AttentionOut& sum) {
  const std::int64_t queries = block.saved.size(2);
  const at::Tensor y = sum.y_BHTK.narrow(2, first_query, queries),
                   log_sum = sum.saved.narrow(2, first_query, queries);
  const at::Tensor both = at::logaddexp(log_sum, block.saved);
  y.mul_((log_sum - both).exp_().unsqueeze(3));
  y.add_(block.y_BHTK.to(at::kFloat) * (block.saved - both).exp_().unsqueeze(3));
  log_sum.copy_(both);
}

AttentionGrads attention_block_backward(const at::Tensor& dy_BHTK,
                                        const at::Tensor& q_BHTK,
                                        const at::Tensor& k_BGSK,
                                        const at::Tensor& v_BGSK,
                                        const AttentionOut& whole,
                                        const AttentionBlock& block) {
  check(q_BHTK, k_BGSK, block);
  if (q_BHTK.is_meta())
    return {at::empty_like(q_BHTK), at::empty_like(k_BGSK), at::empty_like(v_BGSK)};
  if (makes_probabilities(block))
    return plain_backward(dy_BHTK, q_BHTK, k_BGSK, v_BGSK, whole, block);
  return attention_backward(dy_BHTK, q_BHTK, k_BGSK, v_BGSK, whole, args_of(block));
}

}  // namespace tessera::ops
