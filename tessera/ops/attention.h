// SPDX-License-Identifier: Apache-2.0
// Scaled dot-product attention. Legend: B batch, H heads, G heads of keys and values, T queries, S
// keys, K channels of a head. G divides H: consecutive heads share those of keys and values
// (grouped-query attention, Ainslie et al. 2023).
//
// The score of a query and a visible key is computed in this order: q k^T * scale; cap * tanh(. /
// cap) if there is a soft cap (Gemma 2); plus the terms of padding, ALiBi and a bias. Query t has
// the position query_offset + t among the keys, whose positions are their indices.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/ops/dropout.h"

namespace tessera::ops {

struct AttentionPlace {
  std::int64_t tokens = 0;  ///< of the whole sequence
  std::vector<Run> queries, keys;
  std::int64_t of_keys = 0;  ///< length of the keys' sequence; 0: the same sequence
};
struct AttentionArgs {
  bool causal = true;
  /// Position of query 0 among the keys: with a KV cache S = query_offset + T.
  std::int64_t query_offset = 0;
  double scale = 0.0;  ///< 0: 1 / sqrt(K)
  /// Undefined, or 1 where a key counts and 0 where it is padding: adds (1 - mask) * -10000.
  at::Tensor mask_BS;
  /// Undefined, or int64: the start of each token's document, before which it sees nothing;
  /// requires S = T and no offset.
  at::Tensor starts_BT;
  DropoutKey dropout;  ///< dropout of the probabilities; element = (head * T + query) * S + key
  /// First of the H heads among all heads of the layer, from which `head` above counts.
  std::int64_t first_head = 0;
  /// The position of queries and keys within a longer sequence, which defines T and S of `element`
  /// above.
  std::optional<AttentionPlace> place = {};
  /// Sliding window, 0: none. A causal query at position q sees the keys k with 0 <= q - k <
  /// window, including itself; a non-causal one sees those with |q - k| <= window (Hugging Face's
  /// rules).
  std::int64_t window = 0;
  /// Causal attention within chunks of this number of tokens, 0: none: a query at position q sees
  /// no key before q - q % chunk (Llama 4). nn::attention() expresses it by `starts_BT` or a
  /// window; of the functions below, only paged_attention() knows it.
  std::int64_t chunk = 0;
  double softcap = 0.0;  ///< 0: none
  /// Slope of each head of the layer, alibi_slopes(); empty: none. Head h of the layer adds
  /// slope[h] * (k - q) to the score of the key at position k; the difference to ALiBi's slope[h] *
  /// k does not change the softmax.
  std::vector<double> alibi = {};
  /// Undefined, or fp32 [H, T, S] for all samples: added to the scores (relative positions, Raffel
  /// et al. 2020).
  at::Tensor bias_HTS = {};
};
/// Slopes of ALiBi (Press et al. 2022); as in BLOOM if `heads` is not a power of two.
std::vector<double> alibi_slopes(std::int64_t heads);
struct AttentionOut {
  at::Tensor y_BHTK;  ///< q's dtype; 0 where a query sees no key
  at::Tensor saved;   ///< for the backward: log-sum-exp of the scores, fp32 [B, H, T]
};
/// softmax(scores) v with scores and softmax in fp32. Scores and probabilities never exist as a
/// whole, with any masks, windows, biases and dropout: memory is O(T + S), and a window of W keys
/// takes O(T W) time (flash attention, Dao et al. 2022; cpu/attention_blocks.h). Documents of a
/// sample are processed one after the other (packed_attention.h). The bits do not depend on the
/// number of threads. Works on meta.
AttentionOut attention(const at::Tensor& q_BHTK,
                       const at::Tensor& k_BGSK,
                       const at::Tensor& v_BGSK,
                       const AttentionArgs& args);
struct AttentionGrads {
  at::Tensor dq_BHTK, dk_BGSK, dv_BGSK;
  at::Tensor dbias_HTS = {};  ///< fp32, summed over samples; undefined without a bias
};
AttentionGrads attention_backward(const at::Tensor& dy_BHTK,
                                  const at::Tensor& q_BHTK,
                                  const at::Tensor& k_BGSK,
                                  const at::Tensor& v_BGSK,
                                  const AttentionOut& out,
                                  const AttentionArgs& args);

}  // namespace tessera::ops
