// SPDX-License-Identifier: Apache-2.0
// Attention of ranks that share the tokens. Legend: B batch, H heads, G heads of keys and values, T
// this rank's tokens, K channels of a head, N anything. What a rank sends, of P: ring_attention()
// 2 (P - 1) [B, G, T, K] forward, as many backward and 2 P in fp32; the exchanges (P - 1) / P of
// [N, H, T, K] either way.
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

#include "tessera/nn/step_context.h"
#include "tessera/ops/attention.h"

namespace tessera::nn {

/// Attention of this rank's queries over all ranks' keys, in zigzag order. Keys and values go
/// around the ring, and what each block of them gives is merged; in backward they go around again,
/// followed by their gradients. `args.mask_BS` and `args.starts_BT` are of all tokens.
/// Source: Liu et al. 2023, "Ring attention with blockwise transformers"; the order of chunks is
/// Megatron-LM's. Of several documents in a sample, each meets what of it the ring brings. With a
/// window or ALiBi each chunk of queries meets each chunk of keys by itself, as far as any of them
/// sees it.
/// `bias_HTS`: of this rank's queries and all keys, as nn::relative_bias() gives it; may be absent.
at::Tensor ring_attention(const at::Tensor& q_BHTK,
                          const at::Tensor& k_BGTK,
                          const at::Tensor& v_BGTK,
                          const std::optional<at::Tensor>& bias_HTS,
                          const ops::AttentionArgs& args,
                          StepContext& context);

/// Keys and values of all ranks' tokens, in their order: [N, G, T, K] -> [N, G, P T, K]. The
/// backward is the sum over the ranks of the gradients of this rank's tokens: an all-gather and an
/// all-reduce.
at::Tensor keys_of_all_ranks(const at::Tensor& x_NGTK, StepContext& context);

/// [N, H, T, K] of this rank's tokens -> [N, H / P, P T, K] of all tokens; the backward is the way
/// back. Source: Jacobs et al. 2023, "DeepSpeed Ulysses".
at::Tensor tokens_to_heads(const at::Tensor& x_NHTK, StepContext& context);
/// The way back: [N, H / P, P T, K] -> [N, H, T, K].
at::Tensor heads_to_tokens(const at::Tensor& x_NHTK, StepContext& context);

}  // namespace tessera::nn
