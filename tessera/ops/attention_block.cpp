// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/attention_block.h"

#include <limits>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/ops/arguments.h"

namespace tessera::ops {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// A block is attention on its own, and its backward needs of the whole only what
/// attention_backward() takes.
AttentionArgs args_of(const AttentionBlock& block) {
  AttentionArgs args;
  args.causal = block.causal;
  args.scale = block.scale;
  args.mask_BS = block.mask_BS;
  args.dropout = block.dropout;
  args.first_head = block.first_head;
  args.query_offset = block.query_offset;
  args.window = block.window;
  args.softcap = block.softcap;
  args.alibi = block.alibi;
  args.bias_HTS = block.bias_HTS;
  if (block.dropout.active()) args.place = {block.tokens, block.queries, block.keys};
  return args;
}

void check(const at::Tensor& q, const at::Tensor& k, const AttentionBlock& block) {
  TESSERA_REQUIRE(!block.causal || block.query_offset > 0 || q.size(2) == k.size(2),
                  Shape,
                  "a causal block of q " + shape(q) + " and k " + shape(k),
                  "give it as many queries as keys");
}

}  // namespace

AttentionOut attention_block(const at::Tensor& q_BHTK,
                             const at::Tensor& k_BGSK,
                             const at::Tensor& v_BGSK,
                             const AttentionBlock& block) {
  check(q_BHTK, k_BGSK, block);
  return attention(q_BHTK, k_BGSK, v_BGSK, args_of(block));
}

void merge_attention(const AttentionOut& block, std::int64_t first_query, const AttentionOut& sum) {
  const std::int64_t queries = block.saved.size(2);
  const at::Tensor y = sum.y_BHTK.narrow(2, first_query, queries),
                   log_sum = sum.saved.narrow(2, first_query, queries);
  const at::Tensor both = at::logaddexp(log_sum, block.saved);
  // Nothing is visible so far: the share of the previous blocks is 0.
  const at::Tensor whole = both.masked_fill(both == -kInfinity, 0.0);
  y.mul_((log_sum - whole).exp_().unsqueeze(3));
  y.add_(block.y_BHTK.to(at::kFloat) * (block.saved - whole).exp_().unsqueeze(3));
  log_sum.copy_(both);
}

AttentionGrads attention_block_backward(const at::Tensor& dy_BHTK,
                                        const at::Tensor& q_BHTK,
                                        const at::Tensor& k_BGSK,
                                        const at::Tensor& v_BGSK,
                                        const AttentionOut& whole,
                                        const AttentionBlock& block) {
  check(q_BHTK, k_BGSK, block);
  return attention_backward(dy_BHTK, q_BHTK, k_BGSK, v_BGSK, whole, args_of(block));
}

}  // namespace tessera::ops
