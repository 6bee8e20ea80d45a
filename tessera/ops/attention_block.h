// SPDX-License-Identifier: Apache-2.0
// Attention over keys that arrive in blocks: the softmax over one block, and the merging of blocks.
// Source: Liu et al. 2023, "Ring attention with blockwise transformers". Legend: B batch, H heads,
// G heads of keys and values (G divides H), T queries, S keys of the block, K channels of a head.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/ops/attention.h"
#include "tessera/ops/dropout.h"

namespace tessera::ops {

struct AttentionBlock {
  /// Query t of T sees keys [0, query_offset + t] of the block (without an offset, T = S); else it
  /// sees all of them.
  bool causal = false;
  double scale = 0.0;  ///< 0: 1 / sqrt(K)
  at::Tensor mask_BS;  ///< see AttentionArgs::mask_BS; for the block's keys
  DropoutKey dropout;  ///< see AttentionArgs::dropout; for the whole sequence
  std::int64_t first_head = 0;
  // With dropout, the position of queries and keys in the sequence.
  std::int64_t tokens = 0;  ///< of the whole sequence
  std::vector<Run> queries, keys;
  /// Position of query 0 relative to the block's first key; outside [0, S) if the block has other
  /// tokens.
  std::int64_t query_offset = 0;
  // See AttentionArgs.
  std::int64_t window = 0;
  double softcap = 0.0;
  std::vector<double> alibi = {};
  at::Tensor bias_HTS = {};
};

/// y over the block's keys only, in q's dtype, and `saved`: the logarithm of the sum of e^score
/// over them, fp32 [B, H, T]. Works on meta.
AttentionOut attention_block(const at::Tensor& q_BHTK,
                             const at::Tensor& k_BGSK,
                             const at::Tensor& v_BGSK,
                             const AttentionBlock& block);

/// Merges a block's result for the queries from `first_query` on into `sum`, the fp32 result of the
/// previous blocks: y over all keys so far, and the logarithm of their sum.
void merge_attention(const AttentionOut& block, std::int64_t first_query, const AttentionOut& sum);

/// The block's contribution to the gradients; `whole`: y in q's dtype and the logarithm over the
/// keys of all blocks. Works on meta.
AttentionGrads attention_block_backward(const at::Tensor& dy_BHTK,
                                        const at::Tensor& q_BHTK,
                                        const at::Tensor& k_BGSK,
                                        const at::Tensor& v_BGSK,
                                        const AttentionOut& whole,
                                        const AttentionBlock& block);

}  // namespace tessera::ops
