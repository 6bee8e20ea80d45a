// SPDX-License-Identifier: Apache-2.0
// Samples whose number of tokens the ranks that share or split them do not divide, such as the
// patches of an image. Padding follows the last token of each sample: it is a row of zeros at
// first, no token attends to it, and nothing depends on it. Legend: B batch, S tokens of a sample,
// T this rank's tokens with padding, C channels, H heads, G heads of keys and values, K channels of
// a head.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "tessera/nn/block.h"
#include "tessera/nn/step_context.h"
#include "tessera/ops/attention.h"

namespace tessera::nn {

/// The rows of all ids [B, S] on every rank, also where embedding() would return a share of them:
/// [B, S, C]. For inputs of take_tokens(), which leaves each rank the gradient of its own tokens.
at::Tensor whole_embedding(const at::Tensor& ids_BS, const Param& table, StepContext& context);

/// This rank's tokens of x [B, S, C], which all ranks that share or split the tokens have computed
/// in whole: [B, T, C]. Rows of zeros are added where S does not divide evenly. The gradient is
/// that of this rank's tokens. Returns x if the ranks hold all tokens.
at::Tensor take_tokens(const at::Tensor& x_BSC, const StepContext& context);

/// attention() where a sample has `tokens` tokens, and take_tokens() may have added padding behind
/// them: padding is not a key, and its result is 0. The numbers of dropout are those of `tokens`
/// tokens. Neither causal nor with a KV cache.
at::Tensor padded_attention(const at::Tensor& q_BHTK,
                            const at::Tensor& k_BGTK,
                            const at::Tensor& v_BGTK,
                            ops::AttentionArgs args,
                            std::int64_t tokens,
                            const Block& block,
                            StepContext& context);

}  // namespace tessera::nn
