// SPDX-License-Identifier: Apache-2.0
// Attention sinks: one more score for each head, whose key has no value. Attention computes its
// result over the keys; these functions add the sink afterwards, which is exact because the softmax
// over keys and sink is the softmax over the keys, multiplied by the share of the keys. The
// backward of attention is then correct as it is: it takes only the result and the log-sum-exp.
// Source: Xiao et al. 2024, "Efficient streaming language models with attention sinks"; learned by
// gpt-oss (OpenAI 2025). Legend: B batch, H heads, T queries, K channels of a head.
#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/ops/attention.h"

namespace tessera::ops {

/// The result over the keys and the sinks (fp32 [H]), in the dtypes of `keys`, the result over the
/// keys. Throws Error{Shape} for another number of sinks. Works on meta.
AttentionOut with_sinks(const AttentionOut& keys, const at::Tensor& sinks_H);
/// The gradient of the sinks, fp32 [H], summed over samples and queries. `out`: the result with
/// sinks. Works on meta.
at::Tensor sinks_grad(const at::Tensor& dy_BHTK,
                      const AttentionOut& out,
                      const at::Tensor& sinks_H);

}  // namespace tessera::ops
