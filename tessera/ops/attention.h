// SPDX-License-Identifier: Apache-2.0
// Scaled dot-product attention. Legend: B batch, H heads, G heads of keys and values, T queries, S
// keys, K channels of a head. G divides H: consecutive heads share those of keys and values
// (grouped-query attention, Ainslie et al. 2023).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/ops/dropout.h"

namespace tessera::ops {

struct AttentionPlace {
  std::int64_t tokens = 0;  ///< of the whole text
  std::vector<Run> queries, keys;
};
struct AttentionArgs {
  bool causal = true;
  /// Position of query 0 among the keys: with a KV cache S = query_offset + T.
  std::int64_t query_offset = 0;
  double scale = 0.0;  ///< 0: 1 / sqrt(K)
  at::Tensor mask_BS;  ///< undefined, or 1 where a key counts and 0 where it is padding: adds (1 -
                       ///< mask) * -10000
  at::Tensor starts_BT;  ///< undefined, or int64: where the document of each token begins, before
                         ///< which it sees nothing; causal, with S = T and no offset
  DropoutKey dropout;    ///< on the probabilities; element = (head * T + query) * S + key
  std::int64_t first_head = 0;  ///< of H, among all heads of the layer: `head` above counts from it
  /// Where queries and keys stand in a text that is longer than both: T and S of `element` above.
  std::optional<AttentionPlace> place = {};
};
struct AttentionOut {
  at::Tensor y_BHTK;  ///< q's dtype
  at::Tensor saved;   ///< for the backward: log-sum-exp of the scores, fp32 [B, H, T]
};
/// softmax(q k^T * scale + masks) v with fp32 scores and softmax. Scores and probabilities never
/// exist whole, with masks and dropout neither: memory is O(T + S) (flash attention, Dao et al.
/// 2022; cpu/attention_blocks.h). Documents of a sample come one after the other
/// (packed_attention.h). Bits do not depend on the number of threads. Works on meta.
AttentionOut attention(const at::Tensor& q_BHTK,
                       const at::Tensor& k_BGSK,
                       const at::Tensor& v_BGSK,
                       const AttentionArgs& args);
struct AttentionGrads {
  at::Tensor dq_BHTK, dk_BGSK, dv_BGSK;
};
AttentionGrads attention_backward(const at::Tensor& dy_BHTK,
                                  const at::Tensor& q_BHTK,
                                  const at::Tensor& k_BGSK,
                                  const at::Tensor& v_BGSK,
                                  const AttentionOut& out,
                                  const AttentionArgs& args);

}  // namespace tessera::ops
