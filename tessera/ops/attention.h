// SPDX-License-Identifier: Apache-2.0
// Scaled dot-product attention. Legend: B batch, H heads, G heads of keys and values, T queries, S
// keys, K channels of a head. G divides H: consecutive heads share those of keys and values
// (grouped-query attention, Ainslie et al. 2023).
//
// The score of a query and a key that it sees is, in this order: q k^T * scale; cap * tanh(. / cap)
// where there is a soft cap (Gemma 2); plus what padding, ALiBi and a bias add. Query t stands at
// the place query_offset + t among the keys, whose places are their indices.
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
  std::int64_t of_keys = 0;  ///< of the text that the keys are of; 0: that is the same text
};
struct AttentionArgs {
  bool causal = true;
  /// Position of query 0 among the keys: with a KV cache S = query_offset + T.
  std::int64_t query_offset = 0;
  double scale = 0.0;  ///< 0: 1 / sqrt(K)
  at::Tensor mask_BS;  ///< undefined, or 1 where a key counts and 0 where it is padding: adds (1 -
                       ///< mask) * -10000
  at::Tensor starts_BT;  ///< undefined, or int64: where the document of each token begins, before
                         ///< which it sees nothing; with S = T and no offset
  DropoutKey dropout;    ///< on the probabilities; element = (head * T + query) * S + key
  std::int64_t first_head = 0;  ///< of H, among all heads of the layer: `head` above counts from it
  /// Where queries and keys stand in a text that is longer than both: T and S of `element` above.
  std::optional<AttentionPlace> place = {};
  /// Sliding window, 0: none. A causal query at place q sees the keys k with 0 <= q - k < window,
  /// itself among them; another one those with |q - k| <= window (Hugging Face's rules of both).
  std::int64_t window = 0;
  double softcap = 0.0;  ///< 0: none
  /// Slope of each head of the layer, alibi_slopes(); empty: none. Head h of the layer adds
  /// slope[h] * (k - q) to the score of the key at place k: of ALiBi's slope[h] * k this differs by
  /// what softmax does not see.
  std::vector<double> alibi = {};
  /// Undefined, or fp32 [H, T, S], one for all samples: added to scores (relative positions, Raffel
  /// et al. 2020).
  at::Tensor bias_HTS = {};
};
/// Slopes of ALiBi (Press et al. 2022), as BLOOM has them where `heads` is no power of two.
std::vector<double> alibi_slopes(std::int64_t heads);
struct AttentionOut {
  at::Tensor y_BHTK;  ///< q's dtype; 0 where a query sees no key
  at::Tensor saved;   ///< for the backward: log-sum-exp of the scores, fp32 [B, H, T]
};
/// softmax(scores) v with fp32 scores and softmax. Scores and probabilities never exist whole,
/// whatever the masks, windows, biases and dropout: memory is O(T + S), and a window of W keys
/// takes O(T W) time (flash attention, Dao et al. 2022; cpu/attention_blocks.h). Documents of a
/// sample come one after the other (packed_attention.h). Bits do not depend on the number of
/// threads. Works on meta.
AttentionOut attention(const at::Tensor& q_BHTK,
                       const at::Tensor& k_BGSK,
                       const at::Tensor& v_BGSK,
                       const AttentionArgs& args);
struct AttentionGrads {
  at::Tensor dq_BHTK, dk_BGSK, dv_BGSK;
  at::Tensor dbias_HTS = {};  ///< fp32, the sum over samples; undefined without a bias
};
AttentionGrads attention_backward(const at::Tensor& dy_BHTK,
                                  const at::Tensor& q_BHTK,
                                  const at::Tensor& k_BGSK,
                                  const at::Tensor& v_BGSK,
                                  const AttentionOut& out,
                                  const AttentionArgs& args);

}  // namespace tessera::ops
