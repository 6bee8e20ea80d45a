// SPDX-License-Identifier: Apache-2.0
// Flash attention on the CPU (Dao et al., "FlashAttention", 2022; the backward after its second
// version): blocks of queries meet blocks of keys, scores live in the cache and are made again in
// the backward. Products are of bf16 with fp32 sums: our own where the CPU has matrix tiles
// (attention_tiles.h), else MKL's; a block that no query of it may see is skipped. Legend: B batch,
// H heads, G heads of keys and values (G divides H), T queries, S keys, K channels of a head.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace tessera::ops::cpu {

struct AttentionBlocks {
  bool causal = true;
  std::int64_t query_offset = 0;  ///< query t sees keys [0, query_offset + t]
  float scale = 1.0F;
};
/// Whether this CPU's fast products of that dtype are the ones that are needed.
bool attention_blocks_fit(at::ScalarType dtype);
/// y [B, H, T, K] (any strides, channels side by side) and log_sum [B, H, T] (fp32): the logarithm
/// of the sum of e^(scaled score). Bits do not depend on the number of threads.
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

}  // namespace tessera::ops::cpu
