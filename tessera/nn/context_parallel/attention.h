// SPDX-License-Identifier: Apache-2.0
// Attention where ranks share the tokens. Legend: B batch, H heads, G heads of keys and values, T
// this rank's tokens, K channels of a head, N anything. Bytes sent per rank, of P ranks:
// ring_attention() sends 2 (P - 1) tensors [B, G, T, K] forward, the same number backward, and 2 P
// in fp32; each exchange of tokens and heads sends (P - 1) / P of [N, H, T, K].
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

#include "tessera/nn/step_context.h"
#include "tessera/ops/attention.h"

namespace tessera::nn {

/// Attention of this rank's queries over the keys of all ranks, in zigzag order. Keys and values
/// are passed around the ring, and the partial result of each block is merged; in backward they are
/// passed around again, followed by their gradients. `args.mask_BS` and `args.starts_BT` cover all
/// tokens. If a sample contains several documents, each document attends to its own keys in each
/// block that the ring brings. With a window or ALiBi, each chunk of queries is processed with each
/// chunk of keys separately, limited to the visible keys. `bias_HTS` covers this rank's queries and
/// all keys, as nn::relative_bias() returns it; it may be undefined. If `args.place` is given, a
/// sample has `args.place->tokens` tokens, and what follows is padding: it is not a key, and its
/// result is 0. Source: Liu et al. 2023, "Ring
/// attention with blockwise transformers"; the order of chunks is Megatron-LM's.
at::Tensor ring_attention(const at::Tensor& q_BHTK,
                          const at::Tensor& k_BGTK,
                          const at::Tensor& v_BGTK,
                          const std::optional<at::Tensor>& bias_HTS,
                          const ops::AttentionArgs& args,
                          StepContext& context);

/// Gathers keys or values of all ranks' tokens, in their order: [N, G, T, K] -> [N, G, P T, K]. The
/// backward sums the gradients of this rank's tokens over the ranks. It costs an all-gather forward
/// and an all-reduce backward.
at::Tensor keys_of_all_ranks(const at::Tensor& x_NGTK, StepContext& context);

/// Exchanges tokens for heads: [N, H, T, K] of this rank's tokens -> [N, H / P, P T, K] of all
/// tokens; the backward is heads_to_tokens(). Source: Jacobs et al. 2023, "DeepSpeed Ulysses".
at::Tensor tokens_to_heads(const at::Tensor& x_NHTK, StepContext& context);
/// The inverse of tokens_to_heads(): [N, H / P, P T, K] -> [N, H, T, K].
at::Tensor heads_to_tokens(const at::Tensor& x_NHTK, StepContext& context);

}  // namespace tessera::nn
