// SPDX-License-Identifier: Apache-2.0
// Attention with a learned sink for each head (ops/attention_sinks.h).
#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/nn/block.h"
#include "tessera/nn/step_context.h"
#include "tessera/ops/attention.h"

namespace tessera::nn {

/// Causal attention of q [B, H, T, K] to k and v [B, G, T, K] and to the sinks of these heads, one
/// number each, which the parameter `sinks` holds and whose gradient it receives. Runs as
/// context.region("attention"); in Prefill and Decode it uses the KV cache of `block`, as
/// attention() does, with a copy of the keys and values of each sequence if the cache is paged.
/// Throws Error{Unsupported} if ranks share the tokens or split the samples.
at::Tensor sink_attention(const at::Tensor& q,
                          const at::Tensor& k,
                          const at::Tensor& v,
                          ops::AttentionArgs args,
                          const Param& sinks,
                          const Block& block,
                          StepContext& context);

}  // namespace tessera::nn
