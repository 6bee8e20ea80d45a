// SPDX-License-Identifier: Apache-2.0
// Attention over keys that come in blocks: what the softmax over one block gives, and how blocks
// become the whole. Source: Liu et al. 2023, "Ring attention with blockwise transformers". Legend:
// B batch, H heads, G heads of keys and values (G divides H), T queries, S keys of the block, K
// channels of a head.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/ops/attention.h"
#include "tessera/ops/dropout.h"

namespace tessera::ops {

struct AttentionBlock {
  /// Query t of T sees keys [0, query_offset + t] of the block, where T = S without an offset; else
  /// all of them.
  bool causal = false;
  double scale = 0.0;  ///< 0: 1 / sqrt(K)
  at::Tensor mask_BS;  ///< as AttentionArgs::mask_BS, of the block's keys
  DropoutKey dropout;  ///< as AttentionArgs::dropout, of the whole text
  std::int64_t first_head = 0;
  // With dropout, where queries and keys stand in the text.
  std::int64_t tokens = 0;  ///< of the whole text
  std::vector<Run> queries, keys;
  /// Place of query 0 among the block's keys; before them, or behind, where the block is of other
  /// tokens.
  std::int64_t query_offset = 0;
  // As in AttentionArgs.
  std::int64_t window = 0;
  double softcap = 0.0;
  std::vector<double> alibi = {};
  at::Tensor bias_HTS = {};
};

/// y over the block's keys alone, in q's dtype, and `saved`: the logarithm of the sum of e^score
/// over them, fp32 [B, H, T]. Works on meta.
AttentionOut attention_block(const at::Tensor& q_BHTK,
                             const at::Tensor& k_BGSK,
                             const at::Tensor& v_BGSK,
                             const AttentionBlock& block);

/// Adds a block's outcome for the queries from `first_query` on to `sum`, which holds those of the
/// blocks before in fp32: y over all keys so far, and the logarithm of their sum.
void merge_attention(const AttentionOut& block, std::int64_t first_query, const AttentionOut& sum);

/// What the block adds to the gradients; `whole`: y in q's dtype and the logarithm over the keys of
/// all blocks. Works on meta.
AttentionGrads attention_block_backward(const at::Tensor& dy_BHTK,
                                        const at::Tensor& q_BHTK,
                                        const at::Tensor& k_BGSK,
                                        const at::Tensor& v_BGSK,
                                        const AttentionOut& whole,
                                        const AttentionBlock& block);

}  // namespace tessera::ops
