// SPDX-License-Identifier: Apache-2.0
// Blockwise attention with the CPU's bf16 products (tiles.h). The arguments are those of
// attention_blocks.h; requires runs_here(Isa::Avx512Bf16).
//
// Strips of 32 queries are multiplied only with the keys that they see. Keys and values of a head
// are packed into tiles once (64 KB each for 512 keys of 64 channels) and stay in the core's cache,
// as do the scores of a block.
#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/ops/cpu/attention_blocks.h"

namespace tessera::ops::cpu {

void attention_tiles(const at::Tensor& q_BHTK,
                     const at::Tensor& k_BGSK,
                     const at::Tensor& v_BGSK,
                     const AttentionBlocks& how,
                     const at::Tensor& y_BHTK,
                     const at::Tensor& log_sum_BHT);
void attention_tiles_backward(const at::Tensor& dy_BHTK,
                              const at::Tensor& q_BHTK,
                              const at::Tensor& k_BGSK,
                              const at::Tensor& v_BGSK,
                              const at::Tensor& y_BHTK,
                              const at::Tensor& log_sum_BHT,
                              const AttentionBlocks& how,
                              const at::Tensor& dq_BHTK,
                              const at::Tensor& dk_BGSK,
                              const at::Tensor& dv_BGSK);
std::int64_t attention_tiles_floats(const at::Tensor& q_BHTK,
                                    const at::Tensor& k_BGSK,
                                    const AttentionBlocks& how,
                                    bool backward);

}  // namespace tessera::ops::cpu
