// SPDX-License-Identifier: Apache-2.0
// Attention for samples that contain several documents, one after the other; a token attends only
// to its own document. Each document is processed as attention of its own length, so pairs of
// tokens in different documents take neither time nor memory. Legend as in attention.h.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/ops/attention.h"
#include "tessera/ops/dropout.h"

namespace tessera::ops {

/// The documents of each sample, in order. starts [B, T] int64: the start of each token's document.
/// Throws Error{Shape} for other tensors.
std::vector<std::vector<Run>> documents_of(const at::Tensor& starts_BT);

/// Requires args.starts_BT. `saved` is the log-sum-exp of every query, whatever mask and dropout.
/// Works on meta, where the documents are ignored.
AttentionOut packed_attention(const at::Tensor& q_BHTK,
                              const at::Tensor& k_BGTK,
                              const at::Tensor& v_BGTK,
                              const AttentionArgs& args);
AttentionGrads packed_attention_backward(const at::Tensor& dy_BHTK,
                                         const at::Tensor& q_BHTK,
                                         const at::Tensor& k_BGTK,
                                         const at::Tensor& v_BGTK,
                                         const AttentionOut& out,
                                         const AttentionArgs& args);

}  // namespace tessera::ops
