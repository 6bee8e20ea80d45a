// SPDX-License-Identifier: Apache-2.0
// Flash attention on the CPU (Dao et al., "FlashAttention", 2022; the backward as in its second
// version): blocks of queries are multiplied with blocks of keys; scores stay in the cache and are
// recomputed in the backward, as are the random bits of dropout. A block of queries is processed
// only with keys that at least one of them sees: with a window of W keys, the cost is O(T (W + 64))
// (with tiles, in strips of 32). Products accumulate in fp32: for bf16 with tessera's kernels if
// the CPU multiplies bf16 (attention_tiles.h), or with MKL for few queries; other 16-bit numbers
// are widened block by block. Legend: B batch, H heads, G heads of keys and values (G divides H), T
// queries, S keys, K channels of a head.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/ops/arguments.h"

namespace tessera::ops::cpu {

class DropoutRows;

struct AttentionBlocks {
  KeyBand band;                   ///< the keys that a query sees
  std::int64_t query_offset = 0;  ///< position of query 0 among the keys, for ALiBi
  float scale = 1.0F;
  float softcap = 0.0F;           ///< 0: none
  std::vector<float> alibi = {};  ///< slope of each of the H heads; empty: none
  at::Tensor bias_BS;             ///< undefined, or contiguous fp32: added to the scores of a key
  at::Tensor bias_HTS = {};       ///< undefined, or fp32 with contiguous keys: added to the scores
  /// In the backward, if there is a bias: contiguous fp32, to which the gradient is added.
  at::Tensor dbias_HTS = {};
  const DropoutRows* dropout = nullptr;  ///< for the probabilities [B, H, T, S]; nullptr: none
};
/// Computes y [B, H, T, K] (any strides, contiguous channels) and log_sum [B, H, T] (fp32): the
/// logarithm of the sum of e^score, -inf if a query sees no key. The bits do not depend on the
/// number of threads.
void attention_blocks(const at::Tensor& q_BHTK,
                      const at::Tensor& k_BGSK,
                      const at::Tensor& v_BGSK,
                      const AttentionBlocks& how,
                      const at::Tensor& y_BHTK,
                      const at::Tensor& log_sum_BHT);
void attention_blocks_backward(const at::Tensor& dy_BHTK,
                               const at::Tensor& q_BHTK,
                               const at::Tensor& k_BGSK,
                               const at::Tensor& v_BGSK,
                               const at::Tensor& y_BHTK,
                               const at::Tensor& log_sum_BHT,
                               const AttentionBlocks& how,
                               const at::Tensor& dq_BHTK,
                               const at::Tensor& dk_BGSK,
                               const at::Tensor& dv_BGSK);
/// Number of floats that each thread allocates in either function. The tensors may be on meta.
std::int64_t attention_blocks_floats(const at::Tensor& q_BHTK,
                                     const at::Tensor& k_BGSK,
                                     const AttentionBlocks& how,
                                     bool backward);

}  // namespace tessera::ops::cpu
